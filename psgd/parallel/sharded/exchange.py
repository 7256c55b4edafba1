"""What the ranks of a sharded run exchange in a step of stage 2 or 3, beside what they compute.

Stage 2: a rank has all parameters, and of the gradient one unit at a time: each is reduced, and every rank keeps its
own part. Stage 3: of the parameters too a rank has its own part, and a unit is gathered before it is used, forward and
backward, while the unit before is computed.

A pass is one forward and backward over all units, or forward alone. All ranks make the same passes: one without samples
takes part by `pass_by`.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.stage import OnReady
from psgd.parallel.sharded import near_gathers, peer_gathers
from psgd.parallel.sharded.gathers import Gathers
from psgd.parallel.sharded.order import Behind, behind
from psgd.parallel.sharded.scatters import Scatters
from psgd.parallel.sharded.slices import Slices
from psgd.parallel.sharded.unit_buffers import ArrivingParts, UnitBuffers
from psgd.parallel.sharded.visits import plan
from psgd.runtime.device_vectors import registered

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class Exchange:
    """One rank's part. Creating is collective, blocks.

    Args:
        comm: the ranks that share the samples; it stays the caller's, who makes no other non-blocking calls on it.
        slices: of this rank.
        params: stage 3: this rank's own vector. Stage 2: the whole one.
        stage: 2 or 3.
        steps: whose gradients make one update: each is reduced by itself.
        shared: for each unit the units elsewhere whose weights it uses too, under another name.

    Attributes:
        slices, stage, steps, params: as given.
        own: this rank's reduced gradient, once `finish` has returned.
        parameters: for each unit the whole of it: valid from `arrive` to `leave`.
        gradients: for each unit where its gradient is written between `arrive` and `leave` of backward.
        ready: to be called in backward with each range of the vector whose gradient is final, a unit each: `leave`.
            None where an exchange knows by itself.
        scatters: the sum of gradients.
        added: steps in the sum.
        buffer_bytes: of all memory that is not a rank's own vector.
    """

    ready: OnReady | None = None

    def __init__(
        self,
        comm: "Communicator",
        slices: Slices,
        params: Array,
        stage: int,
        steps: int = 1,
        shared: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if stage not in (2, 3) or params.size != (slices.size if stage == 3 else slices.whole):
            raise UsageError(f"shard: expected stage 2 or 3 and a vector of its size, got {stage} and {params.size}")
        self._hold(comm, slices, params, stage, steps)
        units = range(len(slices.units))
        shared = shared or [()] * len(units)
        order, turns = behind(params), UnitBuffers(comm, slices, params)
        self._sum_up(turns.units, turns.of, turns.nbytes, order)
        self._frees = [before_in(turns.of, unit) for unit in units]
        parts, slots = self._make_whole({unit for others in shared for unit in others})
        self._visits = plan(slots, shared) if stage == 3 else plan(tuple(units), [()] * len(units))
        self.gathers = self._gathers(comm, parts, order)
        self.ready = self._ready
        self._trains = self._inside = False
        self._next = 0

    def _hold(self, comm: "Communicator", slices: Slices, params: Array, stage: int, steps: int) -> None:
        """Notes what was given, and makes this rank's own gradient. Collective, blocks."""
        self.slices, self.stage, self.steps, self.params = slices, stage, steps, params
        self._comm = comm
        # The first rank has most, and memory is alike on all.
        self.own = registered(comm, params, slices.of(0).size)[: slices.size]
        self._at = {unit.start: number for number, unit in enumerate(slices.units)}
        self._places = [slices.place(unit) for unit in range(len(slices.units))]
        self.added = self._samples = self.buffer_bytes = 0

    def _sum_up(self, gradients: tuple[Array, ...], slots: Sequence[int], nbytes: int, order: Behind) -> None:
        """Makes the sum of the units' gradients. Collective, blocks.

        Args:
            gradients: for each unit where its gradient is made.
            slots: for each unit the number of that memory.
            nbytes: of all of it.
            order: of exchanges.
        """
        comm, slices = self._comm, self.slices
        arriving = ArrivingParts(comm, slices, self.params, slots) if self.steps > 1 else None
        self.gradients = gradients
        self.buffer_bytes += nbytes + (0 if arriving is None else arriving.nbytes)
        own = [self.own[place] for place in self._places]
        self.scatters = Scatters(comm, slices, gradients, own, None if arriving is None else arriving.units, order)

    def _make_whole(self, alone: Collection[int]) -> tuple[list[Array], tuple[int, ...]]:
        """Makes where units are whole: in buffers in stage 3, else in the vector. Collective, blocks.

        Args:
            alone: units that share no buffer.

        Returns:
            This rank's parts of the units, and the numbers of their buffers.
        """
        params, slices = self.params, self.slices
        if self.stage == 3:
            values = UnitBuffers(self._comm, slices, params, alone)
            self.buffer_bytes += values.nbytes
            self.parameters = values.units
            return [params[place] for place in self._places], values.of
        self.parameters = tuple(params[unit.start : unit.stop] for unit in slices.units)
        return [params[part.start : part.stop] for part in slices.own], ()

    def _gathers(self, comm: "Communicator", parts: Sequence[Array], order: Behind) -> Gathers:
        """Those that are fastest here."""
        if near_gathers.possible(comm, self.params):
            return near_gathers.NearGathers(comm, self.slices, parts, self.parameters)
        if self.stage == 3:
            peers = peer_gathers.create(comm, self.slices, self.params, parts, self.parameters, order)
            if peers is not None:
                return peers
        return Gathers(comm, self.slices, parts, self.parameters, order)

    @property
    def announced(self) -> bool:
        """Whether a training pass has begun and not ended."""
        return self._inside and self._trains

    @property
    def nbytes(self) -> int:
        """What this rank has sent in reduce-scatters and received in all-gathers; over all ranks as much each way."""
        return self.gathers.nbytes + self.scatters.nbytes

    def begin(self, samples: int, trains: bool = True) -> None:
        """A pass begins; with it the first gather. Does not block.

        Args:
            samples: of a training pass, behind its gradient.
            trains: backward follows forward.

        Raises:
            UsageError: the pass before has not ended, or its step has not been taken.
        """
        if self._inside or (trains and self.added == self.steps):
            raise UsageError("shard: a pass is still under way: call step() before the next one")
        self._inside, self._trains, self._samples, self._next = True, trains, samples, 0
        self._start(self._visits.gathers[0] if self.stage == 3 else ())

    def arrive(self, unit: int, backward: bool = False) -> None:
        """The next visit: blocks until the unit is there, and, backward, its gradient may be written.

        A forward pass that nobody has announced begins here; no backward pass follows it.
        """
        if not (self._inside or unit or backward):
            self.begin(0, trains=False)
        visit = self._visit(unit, backward)
        if self.stage == 3:
            for each in self._visits.gathers[visit]:
                self.gathers.wait(each)
            if self._more(visit):
                self._start(self._visits.ahead[visit])
        if backward:
            self.scatters.wait(self._frees[unit])

    def leave(self, unit: int, backward: bool = False) -> None:
        """The visit ends: nobody reads the unit until it is gathered again. Backward, its gradient is final."""
        visit = self._visit(unit, backward)
        if backward:
            self.scatters.add(unit, self._samples)
        if self.stage == 3 and self._more(visit):
            self._start(self._visits.after[visit])
        self._next += 1
        if self._next == self._visits.forward * (2 if self._trains else 1):
            self._inside = False
            if self._trains:
                self.scatters.step()
                self.added += 1

    def used(self, unit: int) -> None:
        """Backward needs the unit no more; here it is let go with its gradient, by `leave`."""

    def gradient_of(self, part: range) -> Array:
        """The gradient of the unit that this range is, where it is made."""
        return self.gradients[self._at[part.start]]

    def _ready(self, part: range) -> None:
        self.leave(self._at[part.start], backward=True)

    def pass_by(self, trains: bool = True) -> None:
        """A whole pass of a rank that has no samples for it. Blocks."""
        self.begin(0, trains)
        units = range(self._visits.forward)
        for unit in units:
            self.arrive(unit)
            self.leave(unit)
        for unit in reversed(units) if trains else ():
            self.arrive(unit, backward=True)
            self.leave(unit, backward=True)

    def finish(self) -> None:
        """All steps of the sum were made: blocks until this rank's part of it is reduced. The next pass begins one."""
        self.scatters.clear()
        self.gathers.changed()
        self.added = 0

    def free(self) -> None:
        """Ends its calls; the communicator stays the caller's."""
        self.scatters.free()
        self.gathers.free()

    def _visit(self, unit: int, backward: bool) -> int:
        visit = 2 * self._visits.forward - 1 - unit if backward else unit
        if not self._inside or visit != self._next:
            raise UsageError(
                f"shard: expected visit {self._next} of a pass that has begun, got {visit}: all units take turns, "
                "forward and then backward, once in each pass, which ps.overlap(samples) begins"
            )
        return visit

    def _more(self, visit: int) -> bool:
        """Whether the next visit belongs to this pass."""
        return self._trains or visit + 1 < self._visits.forward

    def _start(self, units: Sequence[int]) -> None:
        for unit in units:
            self.gathers.start(unit)


def before_in(slots: Sequence[int], unit: int) -> int:
    """The unit whose gradient was in this one's buffer before it, as backward goes from the last to the first."""
    same = [each for each, slot in enumerate(slots) if slot == slots[unit]]
    return same[(same.index(unit) + 1) % len(same)]
