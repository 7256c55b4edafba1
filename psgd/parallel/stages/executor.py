"""Runs a rank's list of instructions: waits for what each one needs, computes, and sends what comes of it."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.array import Array
from psgd.nn.stage import OnReady
from psgd.parallel.microbatches import Batch
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.stages.chunk import Chunk
from psgd.parallel.stages.links import Outlet
from psgd.parallel.stages.time_spent import Counters

Observer = Callable[[Instruction, float, float], None]
"""Told of each instruction: what, and when it began and ended, by `time.perf_counter`; waiting is not in it."""


class Executor:
    """The loop over instructions.

    Args:
        chunks: of this rank.
        waiter: raises in its waits when a peer is lost.

    Attributes:
        counters: what was done.
        observer: see `Observer`; None tells nobody.
    """

    def __init__(self, chunks: Sequence[Chunk], waiter: Waiter) -> None:
        self.counters = Counters()
        self.observer: Observer | None = None
        self._chunks, self._waiter = tuple(chunks), waiter

    def train(self, program: Sequence[Instruction], batch: Batch, on_ready: Sequence[OnReady | None]) -> None:
        """Forward and backward passes of a batch. Blocks.

        Args:
            program: this rank's.
            batch: the same samples on all ranks.
            on_ready: of each chunk.
        """
        self.begin(batch.microbatches, on_ready)
        for each in program:
            self.one(each, batch)
        self.counters.gradients += 1

    def begin(self, microbatches: int, on_ready: Sequence[OnReady | None]) -> None:
        """A gradient begins: the sum over so many microbatches.

        Args:
            microbatches: how many.
            on_ready: of each chunk.
        """
        for chunk, ready in zip(self._chunks, on_ready, strict=True):
            chunk.begin(microbatches, ready)

    def one(self, each: Instruction, batch: Batch) -> None:
        """Does one instruction of this rank's program. Blocks until what it needs is here."""
        chunk = self._chunks[each.chunk]
        start = self._await(lambda: chunk.ready(each))
        chunk.run(each, batch, self._send)
        self.done(each, start, time.perf_counter())

    def done(self, each: Instruction, start: float, stop: float) -> None:
        """Counts an instruction that took from `start` to `stop`, and tells the observer."""
        self.counters.compute_s += stop - start
        alive = sum(one.alive for one in self._chunks) + (each.kind in ("B", "W"))
        self.counters.in_flight_max = max(self.counters.in_flight_max, alive)
        if self.observer is not None:
            self.observer(each, start, stop)

    def evaluate(self, program: Sequence[Instruction], batch: Batch) -> tuple[float, float]:
        """Forward passes alone. Blocks. Returns right answers and summed loss, where the last stage is; else zeros."""
        right: float = 0
        loss = 0.0
        for each in program:
            chunk = self._chunks[each.chunk]
            self._waiter.until(lambda chunk=chunk, each=each: chunk.ready(each))  # type: ignore[misc]
            start = time.perf_counter()
            more, added = chunk.evaluate(each.microbatch, batch, self._send)
            self.counters.evaluation_s += time.perf_counter() - start
            right, loss = right + more, loss + added
        return right, loss

    def wait(self, test: Callable[[], Any]) -> None:
        """Waits until a test succeeds, and counts it as the bubble's."""
        self._await(test)

    def _await(self, test: Callable[[], Any]) -> float:
        """Returns when the wait ended."""
        start = time.perf_counter()
        self._waiter.until(test)
        stop = time.perf_counter()
        self.counters.bubble_s += stop - start
        return stop

    def _send(self, outlet: Outlet, message: Array, total: int) -> None:
        if not outlet.send(message, total):
            self._waiter.until(lambda: outlet.send(message, total))
