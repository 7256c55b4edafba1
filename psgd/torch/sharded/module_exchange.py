"""What the ranks of a sharded module send each other, in the order in which the module uses its units.

A unit becomes whole in a buffer that other units use at other times, and its gradient is made in another such buffer.
Where that one is taken, because a module uses its units in another order than most, memory of its own takes its place.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np
import torch

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.gathers import Gathers
from psgd.parallel.sharded.order import behind
from psgd.parallel.sharded.slices import Slices
from psgd.parallel.sharded.unit_buffers import UnitBuffers
from psgd.runtime.device_vectors import on_device
from psgd.torch.same_memory import array_of, tensor_of

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class ModuleExchange(Exchange):
    """One rank's part; for the worker, an exchange like that of psgd's own models. Creating is collective, blocks.

    Args:
        comm: the ranks; it stays the caller's, who makes no other non-blocking calls on it.
        slices: of this rank.
        params: stage 3: this rank's own vector; stage 2: the whole one.
        stage: 2 or 3.
        steps: whose gradients make one update.
        alone: units that are used beside all others, so that none shares a buffer with them.

    Attributes:
        slices, stage, steps, params, own, scatters, gathers, added, buffer_bytes: as of `Exchange`.
        overlaps: what was started goes on while this rank computes.
        units: for each unit where it is whole.
        on_begin: called with the samples of a pass that begins.
        on_pass_by: called for a pass without samples.
        follow: called before each start.
        look: called with each unit's range before its gradient is reduced, in a pass with samples; None: nobody looks.
        ready: does nothing: the exchange knows by itself.
    """

    def __init__(
        self,
        comm: "Communicator",
        slices: Slices,
        params: Array,
        stage: int,
        steps: int = 1,
        alone: Collection[int] = (),
    ) -> None:
        self._hold(comm, slices, params, stage, steps)
        order, sums = behind(params), UnitBuffers(comm, slices, params, alone)
        self._sum_up(sums.units, sums.of, sums.nbytes, order)
        self._of = sums.of
        self._parts, _ = self._make_whole(alone)
        self.gathers = Gathers(comm, slices, self._parts, self.parameters, order)
        self.units = [tensor_of(unit) for unit in self.parameters]
        self._sums = [tensor_of(unit) for unit in sums.units]
        self.overlaps = on_device(params) or comm.threaded_on_all()
        self._extra = 0
        self._values_of: dict[int, int] = {}  # by buffer, the unit that is in it
        self._sums_of: dict[int, int] = {}
        self._coming: set[int] = set()  # units that were started and not waited for
        self._reducing: set[int] = set()
        self._apart: dict[int, torch.Tensor] = {}  # gradients in memory of their own
        self.look: Callable[[range], None] | None = None
        self.ready = _ignore_part
        self.on_begin: Callable[[int], None] = _ignore
        self.on_pass_by = self.follow = _nothing

    @property
    def nbytes(self) -> int:
        """What this rank has sent in reduce-scatters and received in all-gathers; over all ranks as much each way."""
        return self.gathers.nbytes + self.scatters.nbytes + self._extra

    def begin(self, samples: int, trains: bool = True) -> None:
        """A training pass begins, whose gradient is over so many samples."""
        if self.added == self.steps:
            raise UsageError("shard: a pass is still under way: call step() before the next one")
        self._samples = samples
        self.on_begin(samples)

    def pass_by(self, trains: bool = True) -> None:
        """A whole pass of a rank that has no samples for it. Blocks."""
        self._samples = 0
        self.on_pass_by()
        self.passed()

    def gradient_of(self, part: range) -> Array:
        unit = self._at[part.start]
        return array_of(self._apart[unit]) if unit in self._apart else self.gradients[unit]

    def passed(self) -> None:
        """A pass has ended: each unit was reduced, or is on its way."""
        self.look = None
        self.scatters.step()
        self.added += 1

    def finish(self) -> None:
        """All steps of the sum were made: blocks until this rank's part of it is reduced. The next pass begins one."""
        self._settle()
        self.scatters.clear()
        self.added = 0

    def free(self) -> None:
        """Ends its calls; the communicator stays the caller's."""
        self._settle()
        super().free()

    def gather(self, unit: int, ahead: bool = False) -> torch.Tensor | None:
        """Starts to make a unit whole; returns where. Collective; blocks where its buffer is taken.

        Args:
            unit: its index.
            ahead: it is not needed yet: where its buffer is taken, it does not start, and returns None.
        """
        slot = self._of[unit]
        if self._values_of.setdefault(slot, unit) != unit:
            return None if ahead else self._gather_apart(unit)
        self.follow()
        self._coming.add(unit)
        self.gathers.start(unit)
        return self.units[unit]

    def arrived(self, unit: int) -> None:
        """Blocks until a unit that was started is whole."""
        if unit in self._coming:
            self.follow()
            self._coming.discard(unit)
            self.gathers.wait(unit)

    def let_go(self, unit: int) -> None:
        """Nobody on this rank reads the unit any more."""
        self.arrived(unit)
        if self._values_of.get(self._of[unit]) == unit:
            del self._values_of[self._of[unit]]

    def sum_of(self, unit: int) -> torch.Tensor:
        """Where the unit's gradient is to be made. Blocks until that memory is free."""
        slot = self._of[unit]
        if (other := self._sums_of.get(slot)) in self._reducing and other is not None:
            self._reduced(other)
        if self._sums_of.setdefault(slot, unit) == unit:
            return self._sums[unit]
        self._apart[unit] = torch.empty_like(self._sums[unit])
        return self._apart[unit]

    def reduce(self, unit: int) -> None:
        """Starts to add up all ranks' gradients of a unit. Collective."""
        self.follow()
        if self.look is not None:
            self.look(self.slices.units[unit])
        apart = self._apart.pop(unit, None)
        if apart is not None:
            self._reduce_apart(unit, array_of(apart))
            return
        self.scatters.add(unit, self._samples)
        self._reducing.add(unit)

    def _reduced(self, unit: int) -> None:
        self.follow()
        self.scatters.wait(unit)
        self._reducing.discard(unit)
        if self._sums_of.get(self._of[unit]) == unit:
            del self._sums_of[self._of[unit]]

    def _settle(self) -> None:
        """Nothing is under way: a blocking call may follow."""
        self.follow()
        for unit in list(self._coming):
            self.arrived(unit)
        for unit in list(self._reducing):
            self._reduced(unit)

    def _gather_apart(self, unit: int) -> torch.Tensor:
        self._settle()
        values = torch.empty_like(self.units[unit])
        into, part = array_of(values), self._parts[unit]
        self._comm.Allgatherv(part, [into, list(self.slices.counts(unit))])
        self._extra += into.nbytes - part.nbytes
        return values

    def _reduce_apart(self, unit: int, total: Array) -> None:
        self._settle()
        self.scatters.weigh(total, self._samples)
        own = self.own[self.slices.place(unit)]
        into = np.empty_like(own) if self.scatters.added else own
        self._comm.Reduce_scatter(total, into, list(self.slices.counts(unit)))
        if into is not own:
            np.add(own, into, out=own)
        self._extra += total.nbytes - own.nbytes


def _nothing() -> None:
    pass


def _ignore_part(part: range) -> None:
    pass


def _ignore(samples: int) -> None:
    pass
