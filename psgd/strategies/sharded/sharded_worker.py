"""Data parallelism whose workers each keep a part of what they all had: ZeRO (Rajbhandari et al. 2020), by stages.

Steps and bits are those of `psgd.strategies.allreduce`: gradients are summed in worker order and each worker takes the
optimizer's step, but on its own slices only.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from psgd.checkpoint.declared import Fact, Item
from psgd.checkpoint.pieces.own_ranges import OwnRanges
from psgd.checkpoint.state import State
from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.gathers import Gathers
from psgd.parallel.sharded.order import behind
from psgd.parallel.sharded.own_update import OwnUpdate
from psgd.parallel.sharded.slices import Slices
from psgd.strategies.sharded.scattered_buckets import ScatteredBuckets
from psgd.worker.context import RunContext
from psgd.worker.interface import Worker
from psgd.worker.serverless.lockstep import LockstepWorker

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.metrics.trace.span import Traceable


ModelExchange = Exchange
Shard = int | Exchange
"""What `psgd.connect` takes: 0 is off, 1 that stage, an exchange its own."""


def create(shard: Shard) -> Callable[[RunContext], Worker]:
    """Makes the workers: of stage 1 by that number, of stages 2 and 3 by the exchange that the model runs through."""
    return StateSharded if isinstance(shard, int) else lambda context: ModelSharded(context, shard)


class _Sharded(LockstepWorker):
    """What all stages have in common. Creating is collective, blocks.

    Attributes:
        update: takes the optimizer's steps.
        slices: of this rank.
    """

    accumulates = True
    slices: Slices

    def __init__(self, context: RunContext, comm: "Communicator", grads: Array, update: OwnUpdate) -> None:
        super().__init__(context, comm, grads, together=True)
        self.update = update
        self._optimizer = update.optimizer
        self._factor = context.optimizer.reduction_factor
        self._applied = 0

    def spans(self) -> "list[Traceable]":
        from psgd.metrics.trace.span import Span  # only where a run is traced

        return [*super().spans(), Span(self.update, "take", "apply")]

    def _apply(self, total: int, unit: int, gathers: Gathers | None) -> int:
        """The optimizer's step after a round with so many samples, weighed by `unit`; returns the next unit."""
        self.update.take(self._factor * unit / total, self._applied, gathers)
        self.version = self._optimizer.version
        self._applied += total
        if self._comm.rank == 0:
            self._metrics.progress(self._applied, self.version, self._optimizer.lr)
        most = int(self._rounds.samples.max())
        return most & -most

    def _weighs(self) -> Any:
        """What has the `unit` of samples by which gradients are weighed."""
        raise NotImplementedError

    def _kept(self) -> list[Item]:
        """As `allreduce`, so that each resumes from the other; each worker saves its slices."""
        slices, vectors = self.slices, {"params": self.params} | self._optimizer.arrays
        return [
            OwnRanges(vectors, slices.own, slices.whole),
            Fact("version", self),
            Fact("samples", self, "_applied"),
            Fact("unit", self._weighs(), default=1),
            *self._optimizer.skips(),
            self._votes,
        ]

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        self._rounds.version = self._optimizer.version = self.version
        return []


class StateSharded(_Sharded):
    """Stage 1: all parameters and gradients, and the optimizer's state of the own slices.

    Gradients are reduced to their owners in buckets, while backward still computes where workers have a progress
    thread. Each worker updates its slices, which are all-gathered where parameters lie. After `step` `grads` holds no
    gradient (with `accumulate` above 1 it keeps it).
    """

    def __init__(self, context: RunContext) -> None:
        comm = context.communicator()
        self._buckets = buckets = ScatteredBuckets(comm, context.params, context.accumulate)
        self.slices = buckets.slices
        update = OwnUpdate(context.optimizer, comm, self.slices, context.params, buckets.own)
        super().__init__(context, comm, buckets.grads, update)
        params, order = context.params, behind(context.params)
        own = [params[part.start : part.stop] for part in self.slices.own]
        whole = [params[unit.start : unit.stop] for unit in self.slices.units]
        self._gathers = Gathers(comm, self.slices, own, whole, order)

    @property
    def nbytes(self) -> int:
        """What this rank has sent in reduce-scatters and received in all-gathers."""
        return self._buckets.nbytes + self._gathers.nbytes

    def start(self) -> None:
        self._buckets.compile()
        super().start()

    def _weighs(self) -> Any:
        return self._buckets

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        return self._buckets.overlap(samples)

    def _take_step(self, samples: int, loss: float) -> None:
        complete = self._buckets.add(samples)
        self._rounds.note(samples, loss)
        if complete:
            self._reduce(samples)

    def _round(self, done: bool) -> None:
        self._reduce(0, done)

    def _reduce(self, samples: int, done: bool = False) -> None:
        """Sums over all workers and takes the optimizer's step; `samples` are those of the gradient not added yet."""
        buckets, rounds = self._buckets, self._rounds
        rounds.join()
        total = buckets.complete(samples, lambda began: rounds.exchange(done=done, began=began))
        self.stop = rounds.stop
        if total:
            buckets.unit = self._apply(total, buckets.unit, self._gathers)
        self._votes.decide(rounds.request, self.version)

    def _free(self) -> None:
        self._buckets.free()
        self._gathers.free()

    def _count_bytes(self) -> None:
        self._rounds.bytes_sent += self.nbytes
        super()._count_bytes()


class ModelSharded(_Sharded):
    """Stages 2 and 3: what the model computes with is in an exchange, to which `overlap` announces each pass.

    `params` is the whole vector in stage 2, this worker's own in stage 3. `grads` is its own, for the sum over all
    workers. A worker without samples makes the same passes as the others.

    A gradient that is not finite is in the sum when that is known. Where it is to be omitted (`on_nan`), by `step`
    without samples after a pass with some, all workers omit the update.

    Attributes:
        drops_rounds: says so.
    """

    drops_rounds = True

    def __init__(self, context: RunContext, exchange: Exchange) -> None:
        if exchange.steps != context.accumulate:
            raise UsageError(
                f"shard: expected accumulate={exchange.steps}, as of the exchange, got {context.accumulate}"
            )
        comm = context.communicator()
        self.exchange, self.slices = exchange, exchange.slices
        own = [exchange.own[self.slices.place(unit)] for unit in range(len(self.slices.units))]
        update = OwnUpdate(context.optimizer, comm, self.slices, context.params, own)
        super().__init__(context, comm, exchange.own, update)
        self._passed = False

    @property
    def nbytes(self) -> int:
        """What this rank has sent in reduce-scatters and received in all-gathers."""
        return self.exchange.nbytes

    def start(self) -> None:
        self._rounds.begin(self.params if self.exchange.stage == 2 else self.params[:0])

    def _weighs(self) -> Any:
        return self.exchange.scatters

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """Begins a pass. What it returns is to be called with each unit's range: else the pass does not end."""
        if not samples:
            return None
        self.exchange.begin(samples)
        self._passed = True
        return self.exchange.ready

    def unit_grads(self, part: range) -> Array:
        """The gradient that was made of this unit, as it is before it is summed."""
        return self.exchange.gradient_of(part)

    def _take_step(self, samples: int, loss: float) -> None:
        self._rounds.note(samples, loss)
        if not self._passed:
            self.exchange.pass_by()
        elif not samples:
            self._rounds.spoil()
        self._passed = False
        if self.exchange.added == self.exchange.steps:
            self._reduce()

    def _round(self, done: bool) -> None:
        while self.exchange.added < self.exchange.steps:
            self.exchange.pass_by()
        self._reduce(done)

    def _reduce(self, done: bool = False) -> None:
        """The sum over all workers is under way: takes the optimizer's step."""
        exchange, rounds = self.exchange, self._rounds
        rounds.join()
        began = time.perf_counter()
        exchange.finish()
        total = rounds.exchange(done=done, began=began)
        self.stop = rounds.stop
        if total:
            gathers = exchange.gathers if exchange.stage == 2 else None
            exchange.scatters.unit = self._apply(total, exchange.scatters.unit, gathers)
        self._votes.decide(rounds.request, self.version)

    def _count_bytes(self) -> None:
        self._rounds.bytes_sent += self.nbytes
        super()._count_bytes()
