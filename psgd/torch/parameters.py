"""Which parameters of a module are trained, and where each lies in the vector."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.torch.same_memory import cupy

REDUCED = (torch.float16, torch.bfloat16)
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, eq=False)
class Slot:
    """One trainable parameter and its elements `offset` to `stop` of the vector.

    Attributes:
        name: its first name in the module.
        parameter: itself.
        offset, stop: of its elements.
        places: every dictionary of a module that has it, with its key there.
        reduced: it has fewer bits than the vector, and memory of its own.
    """

    name: str
    parameter: torch.nn.Parameter
    offset: int
    stop: int
    places: tuple[tuple[dict[str, Any], str], ...]
    reduced: bool

    def of(self, vector: torch.Tensor) -> torch.Tensor:
        """Its elements of a vector, in its shape: a view."""
        return vector[self.offset : self.stop].view(self.parameter.shape)


def find(module: torch.nn.Module) -> tuple[list[Slot], Layout, torch.dtype]:
    """The slots in the order of the module's definition, with their layout and the vector's dtype.

    Raises:
        UsageError: a parameter that psgd cannot train.
    """
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise UsageError("psgd.torch.wrap: expected a module with trainable parameters, got none: see requires_grad")
    for name, parameter in named:
        _check(name, parameter)
    for name, buffer in module.named_buffers():
        if buffer.device.type not in DEVICES or buffer.layout != torch.strided:
            got = f"{buffer.device}, {buffer.layout}"
            raise UsageError(
                f"psgd.torch.wrap: {name}: expected a dense buffer on the CPU or a GPU, got {got}: {_to_cpu(buffer)}"
            )
    _check_devices(named)
    _check_sparse(module)
    _check_memory(module)
    names = {id(p): name for name, p in named}
    every = [(name, names[id(p)]) for name, p in module.named_parameters(remove_duplicate=False) if id(p) in names]
    layout = Layout(
        [(name, tuple(p.shape)) for name, p in named], tied={name: first for name, first in every if name != first}
    )
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for owner, key, parameter in _registered(module):
        places.setdefault(id(parameter), []).append((owner, key))
    double = [name for name, p in named if p.dtype == torch.float64]
    if double and len(double) < len(named):
        raise UsageError(
            f"psgd.torch.wrap: expected float64 in all trainable parameters or none, got it in {double[0]!r} only: "
            "convert the module with .float() or .double()"
        )
    slots = [
        Slot(name, p, at.offset, at.stop, tuple(places[id(p)]), p.dtype in REDUCED)
        for (name, p), at in zip(named, layout.parameters, strict=True)
    ]
    return slots, layout, torch.float64 if double else torch.float32


def frozen(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that are not trained."""
    return [(name, p) for name, p in module.named_parameters() if not p.requires_grad]


def _registered(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.nn.Parameter]]:
    for part in module.modules():
        for key, parameter in part._parameters.items():
            if parameter is not None:
                yield part._parameters, key, parameter


def _to_cpu(tensor: torch.Tensor) -> str:
    """How it gets there: a tensor on the meta device has no values to copy."""
    if tensor.device.type == "meta":
        return "make the module without the meta device, or use module.to_empty(device='cpu') and initialize it"
    return "use module.cpu()"


def _check(name: str, parameter: torch.nn.Parameter) -> None:
    """Refuses a parameter that cannot lie in the vector."""
    where = f"psgd.torch.wrap: {name}"
    if torch.nn.parameter.is_lazy(parameter):
        raise UsageError(f"{where}: expected a shape, got a lazy parameter: call the module on one batch first")
    if parameter.device.type not in DEVICES:
        got, fix = parameter.device, _to_cpu(parameter)
        raise UsageError(f"{where}: expected all parameters on the CPU or on one GPU, got {got}: {fix}")
    if parameter.dtype.is_complex:
        raise UsageError(f"{where}: expected real numbers, got {parameter.dtype}: use torch.view_as_real on a real one")
    if parameter.dtype not in (torch.float32, torch.float64, *REDUCED):
        raise UsageError(f"{where}: expected float32, float64, float16 or bfloat16, got {parameter.dtype}")
    if parameter.layout != torch.strided:
        raise UsageError(f"{where}: expected a dense parameter, got {parameter.layout}: use to_dense()")
    if not parameter.numel():
        raise UsageError(f"{where}: expected elements, got shape {tuple(parameter.shape)}: set requires_grad=False")


def _check_devices(named: list[tuple[str, torch.nn.Parameter]]) -> None:
    """Refuses parameters on several devices, and a GPU without CuPy."""
    first, device = named[0][0], named[0][1].device
    for name, parameter in named:
        if parameter.device != device:
            raise UsageError(
                f"psgd.torch.wrap: {name}: expected all trainable parameters on one device, got {parameter.device} "
                f"and {device} in {first}: use module.to(device)"
            )
    if device.type == "cuda":
        cupy()


def _check_sparse(module: torch.nn.Module) -> None:
    """Refuses layers that make sparse gradients."""
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) is True and any(p.requires_grad for p in part.parameters(recurse=False)):
            raise UsageError(
                f"psgd.torch.wrap: {name or 'module'}: expected dense gradients, got {type(part).__name__} with "
                "sparse=True: use sparse=False"
            )


def _is_fake(tensor: torch.Tensor) -> bool:
    """Whether it has no memory, as in an estimate: all of those have the same address."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and isinstance(tensor, fake.FakeTensor)


def _check_memory(module: torch.nn.Module) -> None:
    """Refuses tensors that share memory with a trainable parameter: they would be apart afterwards."""
    seen: dict[int, tuple[str, bool]] = {}
    tensors = [pair for pair in (*module.named_parameters(), *module.named_buffers()) if not _is_fake(pair[1])]
    for name, tensor in tensors:
        if torch.nn.parameter.is_lazy(tensor) or tensor.device.type not in DEVICES or tensor.layout != torch.strided:
            continue
        other, trained = seen.setdefault(tensor.data_ptr(), (name, tensor.requires_grad))
        if other != name and tensor.numel() and (trained or tensor.requires_grad):
            raise UsageError(
                f"psgd.torch.wrap: {name}: expected memory of its own, got that of {other}: to tie two, assign one "
                "Parameter under both names"
            )
