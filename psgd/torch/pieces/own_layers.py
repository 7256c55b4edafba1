"""Which tensors a rank keeps: those of its own layers on the CPU, with first values; the others on the meta device."""

from collections.abc import Callable, Iterable, Mapping

import torch
from mpi4py import MPI

from psgd.kernels.errors import UsageError
from psgd.torch.first_draws import drawing, has_own, reset_of
from psgd.torch.pieces.sequential_stages import NamedLayer

Init = Callable[[torch.nn.Module], None]
"""Gives a layer's tensors first values, in place."""


def check(layers: Iterable[NamedLayer], init: Init | None) -> None:
    """Looks whether layers on the meta device can be given values.

    Raises:
        UsageError: one cannot.
    """
    for layer in layers:
        tensors = [*layer.module.parameters(), *layer.module.buffers()]
        kinds = {tensor.device.type for tensor in tensors}
        if "meta" not in kinds:
            continue
        if len(kinds) > 1:
            raise UsageError(f"layer {layer.key}: expected all tensors on the meta device, or none, got a mixture")
        if init is not None:
            continue
        for name, part in layer.module.named_modules():
            if has_own(part) and reset_of(part) is None:
                where = f"{layer.key}.{name}" if name else layer.key
                raise UsageError(
                    f"layer {where} ({type(part).__name__}) is on the meta device and has no reset_parameters(): pass "
                    "init=function, which is called with each layer of the Sequential and gives it values"
                )


def keep(
    layers: Iterable[NamedLayer],
    mine: Iterable[NamedLayer],
    first_names: Mapping[str, str],
    init: Init | None,
    seed: int,
) -> torch.nn.Module:
    """Makes this rank's layers real and moves the others to the meta device, in place.

    First values of a layer that was on the meta device depend on the seed and its number alone, not on the cuts.

    Args:
        layers: all of the whole.
        mine: some of them.
        first_names: of parameters in the whole; parameters that are one stay one.
        init: as `check`.
        seed: of first values.

    Returns:
        A module with this rank's layers, by their names in the whole.
    """
    mine = list(mine)
    kept = {id(part) for layer in mine for part in layer.module.modules()}
    container = torch.nn.Module()
    for number, layer in enumerate(layers):
        if layer in mine:
            fill(layer.module, number, init, seed)
            if layer.key:
                container.add_module(layer.key, layer.module)
            else:
                container = layer.module
        elif not any(id(part) in kept for part in layer.module.modules()):
            layer.module.to("meta")
    _tie(container, first_names)
    return container


def share(comm: MPI.Intracomm, module: torch.nn.Module, first_names: Mapping[str, str]) -> None:
    """A parameter of several ranks gets the values of the rank that has its first name. Collective, blocks.

    Args:
        comm: the ranks.
        module: this rank's layers.
        first_names: as `keep`.
    """
    names = sorted({first for name, first in first_names.items() if name != first})
    if not names:
        return
    mine: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters():
        mine.setdefault(first_names[name], parameter)
    own = set(dict(module.named_parameters()))
    for name in names:
        holders = comm.allgather((name in own, name in mine))
        source = next(rank for rank, (first, _) in enumerate(holders) if first)
        others = [rank for rank, (first, has) in enumerate(holders) if has and not first]
        part = comm.Split(0 if comm.Get_rank() in (source, *others) else MPI.UNDEFINED, comm.Get_rank() != source)
        if part != MPI.COMM_NULL:
            values = mine[name].detach().numpy()
            part.Bcast(values)
            part.Free()


def fill(module: torch.nn.Module, number: int, init: Init | None, seed: int) -> None:
    """Gives a layer first values on the CPU, if it was on the meta device.

    Args:
        module: the layer.
        number: of it in the whole.
        init: as `check`.
        seed: as `keep`.
    """
    if not any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()]):
        return
    module.to_empty(device="cpu")
    with drawing(seed, number):
        if init is not None:
            init(module)
            return
        for part in reversed(list(module.modules())):  # an owner sets what its parts have drawn
            if (reset := reset_of(part)) is not None:
                reset()


def _tie(container: torch.nn.Module, first_names: Mapping[str, str]) -> None:
    """Names of one parameter in the whole get one again, of the first layer here that has it."""
    found: dict[str, torch.nn.Parameter] = {}
    for name, parameter in list(container.named_parameters(remove_duplicate=False)):
        one = found.setdefault(first_names[name], parameter)
        if one is not parameter:
            owner, _, key = name.rpartition(".")
            setattr(container.get_submodule(owner), key, one)
