"""What the copies of a stage exchange in a step of stage 2 or 3, while a schedule's microbatches pass through it.

All copies have the same turns: those of a whole batch, as its schedule orders them. Where a batch is small, a copy
takes part in the turns of the microbatches that it does not have.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.parallel.sharded import near_gathers, peer_gathers
from psgd.parallel.sharded.exchange import Exchange, before_in
from psgd.parallel.sharded.gathers import Gathers
from psgd.parallel.sharded.order import Behind, behind
from psgd.parallel.sharded.pieces.turns import NONE, Turns, plan
from psgd.parallel.sharded.slices import Slices
from psgd.parallel.sharded.unit_buffers import UnitBuffers
from psgd.runtime.device_vectors import registered

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class PieceExchange(Exchange):
    """One rank's part. Creating is collective over the copies, blocks.

    Args:
        comm: the copies; it stays the caller's, who makes no other non-blocking calls on it.
        gathering: the same ranks, for gathers: the copies may reduce and gather in different orders. The same
            communicator: where gathers need it, units are reduced at the end of a batch.
        slices: of this rank.
        params: stage 3: this rank's own vector. Stage 2: the whole one of its piece.
        stage: 2 or 3.
        turns: of a whole batch.
        steps: whose gradients make one update: each is reduced by itself.
        shared: for each unit the units elsewhere whose weights it uses too, under another name.
        whole: the gradient of a batch is made of several, so that each rank keeps it whole until it is complete.

    Attributes:
        slices, stage, steps, params, own, parameters, gradients, scatters, gathers, added, buffer_bytes: as of
            `Exchange`.
        gradient: the whole one of a batch, or None.
    """

    _waits: bool
    """Whether units are reduced at the end of a batch: the copies come there with all turns behind them.

    Else one would wait for memory that another frees only after turns for which it needs the first; or, where gathers
    and reductions are in one queue, for a gather in front of which another has put a reduction.
    """

    def __init__(
        self,
        comm: "Communicator",
        gathering: "Communicator",
        slices: Slices,
        params: Array,
        stage: int,
        turns: Sequence[tuple[int, bool]],
        *,
        steps: int = 1,
        shared: Sequence[Sequence[int]],
        whole: bool,
    ) -> None:
        self._hold(comm, slices, params, stage, steps)
        units, order = range(len(slices.units)), behind(params)
        self.gradient: Array = None
        self._in_turn = not whole
        slots = tuple(unit % 2 for unit in units)
        if whole:
            self.gradient = registered(comm, params, slices.whole)
            gradients = tuple(self.gradient[unit.start : unit.stop] for unit in slices.units)
            self._sum_up(gradients, slots, int(self.gradient.nbytes), order)
        else:
            sums = UnitBuffers(comm, slices, params)
            slots = sums.of
            self._sum_up(sums.units, slots, sums.nbytes, order)
        self._frees = [before_in(slots, unit) for unit in units]
        parts, self._slots = self._make_whole({unit for others in shared for unit in others})
        self.gathers = self._gathered_by(comm, gathering, parts, order)
        one_queue = stage == 3 and gathering is comm and type(self.gathers) is Gathers
        self._waits = whole and (steps > 1 or one_queue)
        self.ready = self._reduce
        self._shared = shared
        self._training = self.planned(turns)
        self._turns, self._next = NONE, 0
        self._inside = self._trains = False
        self._complete: list[int] = []  # units whose gradient is final

    def _gathered_by(
        self, comm: "Communicator", gathering: "Communicator", parts: Sequence[Array], order: Behind
    ) -> Gathers:
        """What is fastest here. Collective, blocks."""
        slices, params = self.slices, self.params
        if near_gathers.possible(comm, params):
            return near_gathers.NearGathers(comm, slices, parts, self.parameters)
        if self.stage == 3:
            # On a stream of their own. A reduction there would wait for copies that come to it later, and passes behind
            # it for what they need; without it no copy waits for another rank.
            peers = peer_gathers.create(comm, slices, params, parts, self.parameters, behind(params))
            if peers is not None:
                return peers
        return Gathers(gathering, slices, parts, self.parameters, order)

    @property
    def stays(self) -> bool:
        """Whether turns do nothing, as all is in its place: passes can be repeated without them, as CUDA graphs."""
        return self.stage == 2 and not (self._in_turn or self._waits)

    def planned(self, turns: Sequence[tuple[int, bool]]) -> Turns:
        """What is gathered for such turns: nothing in stage 2."""
        return plan(turns, self._slots, self._shared) if self.stage == 3 else NONE

    def begin(self, samples: int, trains: bool = True, turns: Turns | None = None) -> None:
        """A batch begins; with it the first gather. Does not block.

        Args:
            samples: of a training step, behind its gradient.
            trains: backward passes follow.
            turns: of a batch without them.

        Raises:
            UsageError: the batch before has not ended, or its step has not been taken.
        """
        if self._inside or (trains and self.added == self.steps):
            raise UsageError("shard: a batch is still under way: call step() before the next one")
        self._inside, self._trains, self._samples, self._next = True, trains, samples, 0
        self._turns = self._training if trains else turns or NONE
        self._start(self._turns.gathers[0] if self._turns.gathers else ())

    def end(self) -> None:
        """All of the batch was computed: blocks where a gradient is kept by two units' turns."""
        if self._next != len(self._turns.order) or (self._trains and len(self._complete) != len(self.slices.units)):
            raise UsageError(f"shard: the batch has ended after {self._next} of {len(self._turns.order)} turns")
        self._inside = False
        if self._trains:
            if self._waits:
                for unit in self._complete:
                    self._reduce_now(unit)
            self._complete = []
            self.scatters.step()
            self.added += 1

    def arrive(self, unit: int, backward: bool = False) -> None:
        """The next turn: blocks until the unit is there, and, backward, its gradient may be written."""
        if self.stage == 3:
            turn = self._turn(unit, backward)
            for each in self._turns.gathers[turn]:
                self.gathers.wait(each)
            self._start(self._turns.ahead[turn])
        if backward and self._in_turn:
            self.scatters.wait(self._frees[unit])
        elif backward and self._waits:  # of the step before; of this one others may need this rank's turns first
            self.scatters.wait(unit)

    def leave(self, unit: int, backward: bool = False) -> None:
        """The turn ends: nobody reads the unit until it is gathered again."""
        if self.stage == 3:
            self._start(self._turns.after[self._turn(unit, backward)])
            self._next += 1

    def used(self, unit: int) -> None:
        """A backward turn ends; whether the gradient is final, `ready` tells."""
        self.leave(unit, backward=True)

    def pass_by(self, trains: bool = True) -> None:
        """A whole batch of a rank that has no samples for it. Blocks."""
        self.begin(0, trains)
        self.go_by(self._turns.order)
        if trains and not (self._in_turn and self.stage == 3):
            for unit in reversed(range(len(self.slices.units))):
                if self._in_turn:
                    self.scatters.wait(self._frees[unit])
                self._reduce(self.slices.units[unit])
        self.end()

    def go_by(self, turns: Sequence[tuple[int, bool]]) -> None:
        """Takes part in turns without computing."""
        for unit, backward in turns:
            self.arrive(unit, backward)
            self.leave(unit, backward)
            if backward and self._in_turn:
                self._reduce(self.slices.units[unit])

    def finish(self) -> None:
        """All steps of the sum were made: blocks until this rank's part of it is reduced. The next batch begins one."""
        self.scatters.clear()
        self.gathers.changed()
        self.added = 0

    def _reduce(self, part: range) -> None:
        unit = self._at[part.start]
        self._complete.append(unit)
        if not self._waits:
            self.scatters.add(unit, self._samples)

    def _reduce_now(self, unit: int) -> None:
        for busy in (unit, self._frees[unit]):
            self.scatters.wait(busy)
        self.scatters.add(unit, self._samples)

    def _turn(self, unit: int, backward: bool) -> int:
        order = self._turns.order
        if not self._inside or self._next == len(order) or order[self._next] != (unit, backward):
            raise UsageError(
                f"shard: expected turn {self._next} of {len(order)} of a batch that has begun, got unit {unit}"
            )
        return self._next
