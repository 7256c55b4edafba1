"""The state of a sharded module as a whole, under its own names: gathered and loaded a unit at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from psgd.kernels.errors import UsageError
from psgd.runtime.agreement import agree
from psgd.torch.sharded.keeper import Keeper
from psgd.torch.sharded.module_units import Unit
from psgd.torch.sharded.residence import Residence

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class HasUnits(Protocol):
    """A sharded module."""

    @property
    def module(self) -> torch.nn.Module:
        """PyTorch's."""

    @property
    def units(self) -> Sequence[Unit]:
        """Of its parameters."""


class Guard:
    """Refuses the module's own `state_dict` and `load_state_dict`: parameters that are nowhere have no values.

    Attributes:
        open: they work.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.open = False
        self._hooks = [
            module.register_state_dict_pre_hook(self._refuse_read),
            module._register_load_state_dict_pre_hook(self._refuse_write),
        ]

    def _refuse_read(self, *_: Any) -> None:
        if not self.open:
            raise UsageError(
                "state_dict: the module is sharded, and this rank has a part of it: call the state_dict() of what "
                "psgd.torch.shard returned, on all ranks"
            )

    def _refuse_write(self, *_: Any) -> None:
        raise UsageError(
            "load_state_dict: the module is sharded, and this rank has a part of it: call the load_state_dict() of "
            "what psgd.torch.shard returned, on all ranks"
        )


def gathered(whole: HasUnits, keeper: Keeper, guard: Guard | None, wanted: bool) -> dict[str, torch.Tensor]:
    """All values on the CPU, where they are wanted; tensors of their own. Collective, blocks."""
    found: dict[str, torch.Tensor] = {}
    if wanted:
        if guard is not None:
            guard.open = True
        try:
            found = dict(whole.module.state_dict())
        finally:
            if guard is not None:
                guard.open = False
    names: dict[int, list[str]] = {}
    for name, p in whole.module.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    trained = set()
    for unit in whole.units:
        if guard is not None:
            keeper.hold([unit.index])
        for slot in unit.slots:
            mine = [name for name in names[id(slot.parameter)] if name in found]
            copy = slot.parameter.detach().cpu().clone() if mine else None
            for name in mine:
                assert copy is not None
                found[name] = copy
                trained.add(name)
        if guard is not None:
            keeper.drop([unit.index])
    for name, tensor in found.items():
        if name not in trained and isinstance(tensor, torch.Tensor):
            found[name] = tensor.detach().cpu().clone()
    return found


def load(
    whole: HasUnits,
    state: Mapping[str, torch.Tensor] | None,
    training: bool,
    comm: "Communicator",
    dtype: torch.dtype,
    set_part: Callable[[int, torch.Tensor], None],
) -> None:
    """Gives the module the first rank's values. Collective, blocks."""
    leads, complaint = comm.rank == 0, None
    if training:
        complaint = "the module is being trained: load before psgd.connect, or after its block"
    elif leads:
        complaint = _wrong(whole, state)
    agree(comm.comm, "load_state_dict", {}, complaint)
    for unit in whole.units:
        home = Residence(unit)
        values = torch.zeros(len(unit.part), dtype=dtype, device=unit.slots[0].parameter.device)
        for index, slot in enumerate(unit.slots if leads and state is not None else ()):
            assert state is not None
            home.view(index, values).copy_(state[slot.name])
        set_part(unit.index, values)
    rest = _rest(whole)
    sent = [state[name].detach().cpu() for name in rest] if leads and state is not None else None
    with torch.no_grad():
        for tensor, value in zip(rest.values(), comm.comm.bcast(sent), strict=True):
            tensor.copy_(value)


def _rest(whole: HasUnits) -> dict[str, torch.Tensor]:
    """Frozen parameters and the buffers that a state has, by name."""
    trained = {id(slot.parameter) for unit in whole.units for slot in unit.slots}
    found = {name: p for name, p in whole.module.named_parameters() if id(p) not in trained}
    kept: dict[str, torch.Tensor] = dict(found)
    for prefix, part in whole.module.named_modules():
        for key, buffer in part._buffers.items():
            if buffer is not None and key not in part._non_persistent_buffers_set:
                kept[f"{prefix}.{key}" if prefix else key] = buffer
    return kept


def _wrong(whole: HasUnits, state: Mapping[str, torch.Tensor] | None) -> str | None:
    """What is wrong with a state, if anything."""
    if not isinstance(state, Mapping):
        return f"expected a dictionary of tensors on the first rank, got {type(state).__name__}"
    wanted = {slot.name: slot.parameter.shape for unit in whole.units for slot in unit.slots}
    wanted |= {name: tensor.shape for name, tensor in _rest(whole).items()}
    for name, shape in wanted.items():
        if name not in state:
            return f"expected {name}, which is missing"
        if state[name].shape != shape:
            return f"{name}: expected shape {tuple(shape)}, got {tuple(state[name].shape)}"
    others = {name for name, _ in whole.module.named_parameters(remove_duplicate=False)}
    if unknown := [name for name in state if name not in wanted and name not in others]:
        return f"expected names of the module, got {unknown[0]}"
    return None
