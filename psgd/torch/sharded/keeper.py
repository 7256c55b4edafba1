"""Which units are whole at the moment: gathered before they are used, the next one ahead of time, and let go after."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from psgd.kernels.errors import UsageError
from psgd.torch.sharded.foresight import Foresight
from psgd.torch.sharded.module_units import Unit
from psgd.torch.sharded.residence import Residence, Saved, saved


class UnitSource(Protocol):
    """How a unit becomes whole, in `psgd.torch.sharded.module_exchange`.

    Attributes:
        overlaps: what was started goes on while this rank computes.
    """

    overlaps: bool

    def gather(self, unit: int, ahead: bool = False) -> torch.Tensor | None:
        """Starts to gather all elements of a unit; returns where. None: it is not needed yet, and there is no room."""

    def arrived(self, unit: int) -> None:
        """Blocks until the unit is whole."""

    def let_go(self, unit: int) -> None:
        """Its memory may be used for others."""


class Keeper:
    """One rank's units.

    Args:
        units: of the module.
        gathers: moves them; in the same order on all ranks.

    Attributes:
        most: most elements that were whole or on their way at once.
        record: what the training pass that is under way has done, in order, for ranks that take part without samples;
            None outside of such.
        tell: called before each of them is done; None: nobody listens.
    """

    def __init__(self, units: Sequence[Unit], gathers: UnitSource) -> None:
        self._homes = [Residence(unit) for unit in units]
        self._gathers = gathers
        self._held = [0] * len(units)  # by forward passes
        self._backward: set[int] = set()  # units that backward uses
        self._coming: dict[int, torch.Tensor] = {}  # what was started ahead of time, and where it will be
        self._where: dict[int, tuple[int, int | None]] = {}
        self._training, self._evaluation = Foresight(), Foresight()
        self.record: list[tuple[str, int]] | None = None
        self.tell: Callable[[str, int], None] | None = None
        self._queued = False  # the call at the end of backward
        self._now = self.most = 0

    def enter(self, unit: int, values: torch.Tensor) -> None:
        """Makes a unit whole with these elements."""
        home = self._homes[unit]
        home.enter(values)
        self._where |= home.places()
        self._count(values.numel())

    def take(self, unit: int, values: torch.Tensor) -> None:
        """Makes a unit whole with what its parameters are now, which these elements get."""
        home = self._homes[unit]
        if home.values is None:
            values.zero_()
        for index, slot in enumerate(home.unit.slots):
            home.view(index, values).copy_(slot.parameter.detach())
        if home.values is None:
            self.enter(unit, values)

    def refresh(self) -> None:
        """Elements of units that are whole have changed: parameters of few bits are rounded from them again."""
        for home in self._homes:
            home.round()

    def leave(self, unit: int) -> None:
        """The unit is not whole any more."""
        home = self._homes[unit]
        if home.values is None:
            return
        self.note("leave", unit)
        self._count(-home.values.numel())
        for address in home.places():
            self._where.pop(address, None)
        home.leave()
        self._gathers.let_go(unit)

    def whole(self, unit: int) -> torch.Tensor | None:
        """Its elements, if it is whole."""
        return self._homes[unit].values

    def hold(self, units: Iterable[int]) -> None:
        """A forward pass begins that uses these units. Collective where one is not whole; blocks."""
        again = in_backward()  # it computes a second time what it did not keep
        if self.record is None and not any(self._held):
            self._evaluation.begin()
        for unit in units:
            self._held[unit] += 1
            if again:
                self.use(unit)
            else:
                self._present(unit)

    def drop(self, units: Iterable[int]) -> None:
        """That pass has ended."""
        for unit in units:
            self._held[unit] -= 1
            self._release(unit)

    def use(self, unit: int) -> None:
        """Backward is about to use a unit. Collective where it is not whole; blocks."""
        if in_backward() and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        self._backward.add(unit)
        self._present(unit)

    def used(self, unit: int) -> None:
        """Backward needs the unit no more."""
        self._backward.discard(unit)
        self._release(unit)

    def begin(self) -> None:
        """A training pass begins."""
        self._end()
        self._training.begin()
        self.record = []

    def end(self) -> list[tuple[str, int]]:
        """It has ended: nothing is whole. What came ahead of time and was not used is let go.

        Returns:
            What was done.
        """
        self._end()
        done, self.record = self.record or [], None
        return done

    def again(self, what: str, unit: int) -> None:
        """Does what was recorded, as part of a pass without samples. Collective, blocks."""
        if what == "gather":
            self._present(unit)
        else:
            self.leave(unit)

    def _end(self) -> None:
        for unit in list(self._backward):
            self.used(unit)
        for unit in list(self._coming):
            self._came(unit)
            self._gathers.let_go(unit)

    def forget(self) -> None:
        """As `end`, after an error in a pass as well: nobody holds anything."""
        self.record = None
        for unit in list(self._coming):
            self._came(unit)
        self._backward.clear()
        self._held = [0] * len(self._homes)
        for unit in range(len(self._homes)):
            self.leave(unit)

    def pack(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps for backward: of a tensor over a unit's memory only where it was."""
        where = self._place_of(tensor)
        return tensor if where is None else saved(tensor, where)

    def check_result(self, tensor: torch.Tensor) -> None:
        """Refuses a module's result in the memory of a unit that is about to be let go.

        Raises:
            UsageError: it is.
        """
        where = self._place_of(tensor)
        if where is not None and self._held[where[0]] <= 1:
            raise UsageError(
                f"psgd.torch: {self._homes[where[0]].unit}: expected a result of its own, got a view of a parameter, "
                "whose memory is let go: return a copy of it (clone())"
            )

    def _place_of(self, tensor: torch.Tensor) -> tuple[int, int | None] | None:
        if not self._where or tensor.layout != torch.strided:
            return None
        try:
            return self._where.get(tensor.untyped_storage().data_ptr())
        except (NotImplementedError, RuntimeError):  # a kind of tensor that has no memory of its own
            return None

    def unpack(self, kept: Any) -> torch.Tensor:
        """That tensor again. Collective where its unit is not whole; blocks."""
        if not isinstance(kept, Saved):
            return kept  # type: ignore[no-any-return]
        self.use(kept.unit)
        return self._homes[kept.unit].restored(kept)

    def _present(self, unit: int) -> None:
        if self._homes[unit].values is not None:
            return
        self.note("gather", unit)
        order = self._evaluation if self.record is None else self._training
        values = self._came(unit) if unit in self._coming else self._gathers.gather(unit)
        assert values is not None  # it was not ahead of time
        self._gathers.arrived(unit)
        self.enter(unit, values)
        self._ahead(order.asked(unit))

    def _ahead(self, unit: int | None) -> None:
        """Starts what will be needed next, where that goes on meanwhile."""
        if not self._gathers.overlaps or unit is None or unit in self._coming or self._homes[unit].values is not None:
            return
        coming = self._gathers.gather(unit, ahead=True)
        if coming is not None:
            self._coming[unit] = coming
            self._count(coming.numel())

    def _came(self, unit: int) -> torch.Tensor:
        """A unit is not ahead of time any more; returns where it is."""
        values = self._coming.pop(unit)
        self._count(-values.numel())
        return values

    def _release(self, unit: int) -> None:
        if self._held[unit] <= 0 and unit not in self._backward:
            self.leave(unit)

    def _end_of_backward(self) -> None:
        self._queued = False
        for unit in list(self._backward):
            self.used(unit)

    def note(self, what: str, unit: int) -> None:
        """Records what is about to be done in a training pass."""
        if self.record is not None:
            if self.tell is not None:
                self.tell(what, unit)
            self.record.append((what, unit))

    def _count(self, elements: int) -> None:
        self._now += elements
        self.most = max(self.most, self._now)


def in_backward() -> bool:
    """Whether autograd computes a backward pass in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)
