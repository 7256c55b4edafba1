"""A pipeline whose stages are shared by the copies of the model: each keeps a part of what they all would have."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.communicator import Communicator
from psgd.kernels.array import Array
from psgd.nn.model import Model
from psgd.nn.stage import OnReady, Stage
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.pieces import turns
from psgd.parallel.sharded.pieces.piece_exchange import PieceExchange
from psgd.parallel.sharded.pieces.sharded_chunk import ShardedChunk
from psgd.parallel.sharded.pieces.stage_units import StageUnits
from psgd.parallel.sharded.slices import Slices


class ShardedPipeline(Pipeline):
    """As `Pipeline`, in stage 2 or 3. Making one is collective over the pipeline and the copies, blocks.

    A gradient and, in stage 3, an evaluation are collective over the copies too: all make as many, `pass_by` where one
    has no samples. Gradients are final in `exchange.own`, once `exchange.finish` has returned; `bind` does nothing.

    On GPUs passes are CUDA graphs in stage 2 only, where a batch has several microbatches: others are started kernel by
    kernel, since the host puts exchanges between them.

    Args:
        comm, model, cuts, schedule, batch, microbatches, recompute, device, graphs: as of `Pipeline`; with a schedule
            that flushes.
        copies: the ranks that have the same stages; it stays the caller's.
        shard: 2 or 3.
        seed: of the first values.
        steps: whose gradients make one update.

    Attributes:
        exchange: of this rank's units.
    """

    _chunk = ShardedChunk
    exchange: PieceExchange

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: Model,
        cuts: Sequence[int],
        schedule: str = "1f1b",
        *,
        copies: MPI.Intracomm,
        shard: int,
        batch: int,
        microbatches: int = 1,
        recompute: Callable[[Stage], Stage] | None = None,
        seed: int = 0,
        steps: int = 1,
        device: str = "cpu",
        graphs: Callable[[], bool] | None = None,
    ) -> None:
        how: dict[str, Any] = {"recompute": recompute, "device": device}
        how["graphs"] = lambda: self.exchange.stays and (graphs is None or graphs())
        super().__init__(comm, model, cuts, schedule, batch=batch, microbatches=microbatches, **how)
        self._all = -(-batch // self._size)  # microbatches of a whole batch
        self._seen = 0
        own = [units.of_stage(stage) for stage in self.stages]
        ends = np.cumsum([0, *map(len, own)]).tolist()
        self._units = {chunk: range(ends[chunk], ends[chunk + 1]) for chunk in range(len(own))}
        self._copies = Communicator(copies)
        every = [_shifted(each, at.start) for ranges, at in zip(own, self._ranges, strict=True) for each in ranges]
        slices = Slices(every, self._copies.size, self._copies.rank)
        program = super()._program(self._all)
        several = self._all > 1 or len(own) > 1 or bool(self._tied.ranges)
        several = several or any(each.kind == "W" for each in program)
        # Gathers come in the order of the turns, and reductions as gradients are complete: earlier where a batch is
        # small. What runs in one queue has one order on all ranks. GPUs have one: kernels of two, each of which waits
        # for its like on other GPUs, may not find room beside each other.
        apart = shard == 3 and several and not self.on_gpu
        self._gathering = Communicator(copies) if apart else self._copies
        params = self._xp.asarray(self.init(seed) if shard == 2 else self._first_own(slices, seed))
        shared = [
            [ends[chunk] + other for other in others]
            for chunk, stage in enumerate(self.stages)
            for others in by_unit.shared_units(stage, own[chunk])
        ]
        self.exchange = PieceExchange(
            self._copies,
            self._gathering,
            slices,
            params,
            shard,
            turns.order(program, self._units),
            steps=steps,
            shared=shared,
            whole=several,
        )
        self._grads = self.exchange.gradient
        for number, (chunk, stage) in enumerate(zip(self._chunks, self.stages, strict=True)):
            assert isinstance(chunk, ShardedChunk)
            chunk.exchange, chunk.units = self.exchange, self._units[number]
            if own[number]:
                made = by_unit.by_unit(stage, StageUnits(self.exchange, ends[number], own[number]))
                chunk.stage = self._computed(made, last=number * self._ranks + self._rank == len(cuts))
            else:
                chunk.stage.bind(params[:0], params[:0])

    def bind(self, params: Array, grads: Array = None) -> None:
        """Nothing: parameters and gradients are where the exchange has them."""

    def gradient(self, n: int, x: Array, y: Array, on_ready: OnReady | None = None) -> float:
        """As `Pipeline.gradient`, of a batch that `exchange.begin` has announced; else its gradient is lost."""
        exchange = self.exchange
        if not (announced := exchange.announced):
            exchange.begin(n)
        loss = super().gradient(n, x, y, on_ready or exchange.ready)
        with self._together():
            exchange.end()
            if not announced:
                exchange.finish()
        return loss

    def evaluate(self, n: int, x: Array, y: Array, most: int | None = None) -> tuple[float, float]:
        """As `Pipeline.evaluate`.

        Args:
            n: as there.
            x: as there.
            y: as there.
            most: samples of the copy that has most, the same on all copies; None: all have n.
        """
        if self.exchange.stage == 2:
            self._seen = -(-n // self._size)
            return self._evaluated(n, x, y)
        self._seen = -(-(most or n) // self._size)
        program = self._forward_program(self._seen)
        self.exchange.begin(0, trains=False, turns=self.exchange.planned(turns.order(program, self._units)))
        if n:
            found = self._evaluated(n, x, y)
        else:
            found = 0, 0.0
            with self._together():
                self.exchange.go_by(turns.order(program, self._units))
        self.exchange.end()
        return found

    def _evaluated(self, n: int, x: Array, y: Array) -> tuple[float, float]:
        for chunk in self._chunks:
            assert isinstance(chunk, ShardedChunk)
            chunk.present = -(-n // self._size)
        return super().evaluate(n, x, y)

    def close(self) -> None:
        if not (self._failed or self._closed):
            self._closed = True
            self.exchange.free()
            for each in {id(one): one for one in (self._copies, self._gathering)}.values():
                each.free()
        super().close()

    _closed = False

    def _program(self, microbatches: int) -> Sequence[Instruction]:
        """That of a whole batch, whatever there is: all copies have the same turns."""
        return super()._program(self._all)

    def _forward_program(self, microbatches: int) -> Sequence[Instruction]:
        """As many as the copy has that has most."""
        if self._chunks_each == 1:
            return catalog.make("inference", self._ranks, self._seen).programs[self._rank]
        return [each for each in super()._program(self._seen) if each.kind == "F"]

    def _first_own(self, slices: Slices, seed: int) -> Any:
        found = np.zeros(slices.size, self.stages[0].dtype)
        for stage, part in zip(self.stages, self._ranges, strict=True):
            by_unit.fill_own(found, stage, slices, seed, part.start)
        return found


def _shifted(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)
