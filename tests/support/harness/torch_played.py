"""A sharded module on one rank, with the others' part played."""

from typing import Any

import torch
from torch import nn

from psgd.torch import parameters
from psgd.torch.sharded.keeper import Keeper
from psgd.torch.sharded.module_units import Unit, plan
from psgd.torch.sharded.pass_hooks import PassHooks


class Played:
    """Gathers from a whole vector into memory of its own, which is poisoned when it is let go."""

    def __init__(self, units: tuple[Unit, ...], store: torch.Tensor, overlaps: bool) -> None:
        self.overlaps, self._units, self._store = overlaps, units, store
        self.log: list[tuple[int, bool]] = []
        self._lent: dict[int, torch.Tensor] = {}

    def gather(self, unit: int, ahead: bool = False) -> torch.Tensor:
        """As of `UnitSource`."""
        self.log.append((unit, ahead))
        part = self._units[unit].part
        self._lent[unit] = self._store[part.start : part.stop].clone()
        return self._lent[unit]

    def arrived(self, unit: int) -> None:
        """As of `UnitSource`."""
        assert unit in self._lent

    def let_go(self, unit: int) -> None:
        """As of `UnitSource`."""
        if unit in self._lent:
            self._lent.pop(unit).fill_(float("nan"))


class Sharded:
    """The module is changed as `psgd.torch.shard` does; its gradients are its own."""

    def __init__(self, module: nn.Module, asked: Any = None, overlaps: bool = False) -> None:
        slots, layout, _ = parameters.find(module)
        self.plan = plan(module, slots, layout.size, asked)
        store = torch.zeros(layout.size)
        for slot in slots:
            slot.of(store).copy_(slot.parameter.detach())
        self.gathers = Played(self.plan.units, store, overlaps)
        self.keeper = Keeper(self.plan.units, self.gathers)
        for unit in self.plan.units:
            self.keeper.take(unit.index, torch.empty(len(unit.part)))
            self.keeper.leave(unit.index)
        self.passes = PassHooks(module, self.plan, self.keeper)

    def nothing_is_whole(self) -> bool:
        """Whether all units were let go."""
        return all(self.keeper.whole(unit.index) is None for unit in self.plan.units)
