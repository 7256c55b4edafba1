"""Finds what of a module can be cut by tensor, and puts the cut modules in its place."""

from collections import Counter

from mpi4py import MPI
from torch import nn

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.runtime.agreement import agree
from psgd.torch.pieces.crossings import OwnDraws
from psgd.torch.pieces.cut_heads import HeadsModule
from psgd.torch.pieces.cut_linears import DEVICES, ColumnModule, RowModule, communicator, same_values

DROPOUTS = (nn.Dropout, nn.AlphaDropout)
ELEMENTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink),
    *DROPOUTS,
)
"""What may be between two linear modules that are cut: of each feature by itself."""
_NOTHING = (
    "expected a module with a pair of linear layers in a Sequential, or an attention, got nothing to cut: see "
    "psgd.torch.column_linear and row_linear"
)
_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def cut_by_tensor(module: nn.Module, comm: "MPI.Intracomm | Communicator") -> nn.Module:
    """Cuts a module's linear layers and attentions over ranks that see the same samples. Collective, blocks.

    Cut are, in place: two `nn.Linear` in a `nn.Sequential` with nothing but elementwise modules between them, each
    `nn.MultiheadAttention` by heads, and the linear modules of `nn.TransformerEncoderLayer` and `DecoderLayer`. The
    rest stays whole on all ranks, with the same gradients. Parameters that have several names stay whole too.

    Args:
        module: on the CPU or each rank's GPU, with the first rank's values then, or on the meta device.
        comm: the ranks; sizes need not divide by their number.

    Returns:
        The module, or what takes its place if it is itself an attention.

    Raises:
        UsageError: there is nothing to cut, or something that cannot be; on all ranks.
    """
    ours, complaint, text = communicator(comm), None, ""
    try:
        text = _described(module)
        found = _Cut(module, ours)
        if not found.count(module):
            raise UsageError(_NOTHING)
    except UsageError as error:
        complaint = str(error)
    agree(ours.comm, "psgd.torch.cut_by_tensor", {"module": text}, complaint)
    same_values(module, ours)
    return found.cut(module)


def cut_alone(module: nn.Module, comm: Communicator) -> nn.Module:
    """As `cut_by_tensor`, of a module on the meta device and without a word to other ranks.

    Args:
        module: what is cut in place.
        comm: of which rank and size alone are asked.

    Raises:
        UsageError: there is nothing to cut, or something that cannot be.
    """
    found = _Cut(module, comm)
    if not found.count(module):
        raise UsageError(_NOTHING)
    return found.cut(module)


def _described(module: nn.Module) -> str:
    if not isinstance(module, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(module).__name__}")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type not in DEVICES:
            raise UsageError(f"{name}: expected a module on the CPU, a GPU or the meta device, got {tensor.device}")
    tensors = [f"{name}{tuple(p.shape)}{p.dtype}{p.device.type}" for name, p in module.named_parameters()]
    return " ".join(tensors)


class _Cut:
    """Walks through a module."""

    def __init__(self, module: nn.Module, comm: Communicator) -> None:
        self._comm = comm
        self._names = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))

    def count(self, module: nn.Module) -> int:
        """How many cuts there are, if all can be done.

        Raises:
            UsageError: one cannot.
        """
        if isinstance(module, nn.MultiheadAttention) and self._single(module):
            if module.bias_k is not None or module.add_zero_attn:
                raise UsageError("expected attentions without add_bias_kv and add_zero_attn, to cut them by heads")
            return 1
        return len(self._pairs(module)) + sum(map(self.count, module.children()))

    def cut(self, module: nn.Module) -> nn.Module:
        """Puts the cut modules in place; returns what takes the place of the module itself."""
        if isinstance(module, nn.MultiheadAttention) and self._single(module):
            return HeadsModule(module, self._comm)
        for first, between, last in self._pairs(module):
            setattr(module, first, ColumnModule(getattr(module, first), self._comm))
            setattr(module, last, RowModule(getattr(module, last), self._comm))
            for name in between:
                if isinstance(getattr(module, name), DROPOUTS):
                    setattr(module, name, OwnDraws(getattr(module, name), self._comm))
        for name, child in module.named_children():
            if not isinstance(child, ColumnModule | RowModule | OwnDraws):
                setattr(module, name, self.cut(child))
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # its layers' weights are not where it would look for them
        return module

    def _single(self, module: nn.Module) -> bool:
        return all(self._names[id(p)] == 1 for p in module.parameters())

    def _pairs(self, module: nn.Module) -> list[tuple[str, tuple[str, ...], str]]:
        """Names of two linear modules, and of what is between them."""
        if isinstance(module, _BLOCKS) and self._linear(module.linear1) and self._linear(module.linear2):
            return [("linear1", ("dropout",), "linear2")]
        if not isinstance(module, nn.Sequential):
            return []
        pairs, children, at = [], list(module.named_children()), 0
        while at < len(children):
            end = at + 1
            while end < len(children) and isinstance(children[end][1], ELEMENTWISE):
                end += 1
            if end < len(children) and self._linear(children[at][1]) and self._linear(children[end][1]):
                pairs.append((children[at][0], tuple(name for name, _ in children[at + 1 : end]), children[end][0]))
                at = end
            at += 1
        return pairs

    def _linear(self, module: nn.Module) -> bool:
        return type(module) is nn.Linear and self._single(module)
