"""The gradient, unit by unit: reduced over the ranks as soon as backward has made a unit's last parameter's."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch.utils.hooks import RemovableHandle

from psgd.kernels.errors import UsageError
from psgd.torch.sharded.module_units import Unit


class Reduces(Protocol):
    """How a unit's gradient is summed, in `psgd.torch.sharded.module_exchange`."""

    def sum_of(self, unit: int) -> torch.Tensor:
        """Where the unit's gradient is to be made."""

    def reduce(self, unit: int) -> None:
        """Starts to add up what all ranks have made there. Collective."""


class ModuleGradients:
    """One rank's.

    Args:
        units: of the module.
        reduces: sums them over the ranks.
        final: called with each unit whose gradient is complete.
        note: called with what is done, for ranks that take part without samples.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        reduces: Reduces,
        final: Callable[[int], None],
        note: Callable[[str, int], None],
    ) -> None:
        self._units, self._reduces, self._final, self._note = units, reduces, final, note
        self._open = False  # a gradient is being made
        self._hooks: list[RemovableHandle] = []
        self._values: dict[int, torch.Tensor] = {}  # of units of which some parameters have their gradients
        self._had: list[set[int]] = [set() for _ in units]
        self._sent = [False] * len(units)

    def attach(self) -> None:
        """From now on each backward pass is reduced."""
        for unit in self._units:
            for index, slot in enumerate(unit.slots):
                hook = partial(self._take, unit, index)
                self._hooks.append(slot.parameter.register_post_accumulate_grad_hook(hook))
                slot.parameter.grad = None

    def detach(self) -> None:
        """Gradients are the module's own again."""
        while self._hooks:
            self._hooks.pop().remove()
        self._clear()

    def begin(self) -> None:
        """The next backward pass makes a gradient."""
        if any(self._sent) or self._values:
            raise UsageError("overlap: a gradient is already being reduced: call step() before the next one")
        self._open = True

    def finish(self) -> None:
        """Reduces what backward did not reach, which is zero. Collective."""
        if not self._open:
            raise UsageError(
                "step: expected ps.overlap(samples) before the backward pass of a sharded module, which weighs its "
                "gradient: call it before each forward pass"
            )
        for unit in reversed(self._units):
            if not self._sent[unit.index]:
                self._send(unit)
        self._clear()

    def _clear(self) -> None:
        self._open = False
        self._values.clear()
        self._sent = [False] * len(self._units)
        for had in self._had:
            had.clear()

    def _take(self, unit: Unit, index: int, parameter: torch.Tensor) -> None:
        """Autograd's hook: one parameter's gradient is complete."""
        if not self._open:
            raise UsageError(
                f"{unit.slots[index].name}: expected ps.overlap(samples) before backward(), which weighs the gradient "
                "of a sharded module: call it before each forward pass, and step() after backward()"
            )
        if index in self._had[unit.index]:
            raise UsageError("step: expected one backward() between overlap() and step(), got a second")
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout != torch.strided:
            name = unit.slots[index].name
            raise UsageError(f"psgd.torch: {name}: expected a dense gradient, got {gradient.layout}: sparse=False")
        slot, start = unit.slots[index], unit.part.start
        flat = self._flat(unit)
        flat[slot.offset - start : slot.stop - start].view(gradient.shape).copy_(gradient.detach())
        parameter.grad = None
        had = self._had[unit.index]
        had.add(index)
        if len(had) == len(unit.slots):
            self._final(unit.index)
            self._send(unit)

    def again(self, what: str, unit: int) -> None:
        """Does what was recorded, as part of a pass without samples. Collective, blocks."""
        if what == "make":
            self._flat(self._units[unit])
        else:
            self._send(self._units[unit])

    def _flat(self, unit: Unit) -> torch.Tensor:
        if unit.index not in self._values:
            self._note("make", unit.index)
            # What lies between the parameters, and those that backward does not reach, are zero.
            self._values[unit.index] = self._reduces.sum_of(unit.index).zero_()
        return self._values[unit.index]

    def _send(self, unit: Unit) -> None:
        self._flat(unit)
        self._note("reduce", unit.index)
        del self._values[unit.index]
        self._sent[unit.index] = True
        self._reduces.reduce(unit.index)
