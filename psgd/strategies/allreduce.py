"""Data parallelism by all-reduce, as PyTorch's DistributedDataParallel (Li et al., VLDB 2020).

Every worker has all parameters and the optimizer's whole state. A step sums samples * gradient over the workers, in
worker order, divides by the samples, and every worker takes the same optimizer's step with the same bits.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint.state import State
from psgd.collectives import Communicator
from psgd.collectives.dispatch.nonblocking import Request
from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.kernels import accumulate as kernels
from psgd.kernels.errors import UsageError
from psgd.runtime.device_vectors import on_device, registered
from psgd.worker.checkpoint_votes import CheckpointVotes
from psgd.worker.context import RunContext
from psgd.worker.interface import Worker
from psgd.worker.status_rounds import StatusRounds

Vector = NDArray[np.floating]

BUCKET_BYTES = 1 << 20
"""Largest part that is all-reduced at once during backward. The last one is never hidden, so it should be short; below
about this size a call's own cost shows. A core's second cache holds it, so it is weighed where it was made."""


def create(workers: int, accumulate: int) -> Callable[[RunContext], Worker]:
    """All-reduce of the gradients.

    Args:
        workers: how many there are.
        accumulate: steps whose gradients are summed locally before they are all-reduced and applied.
    """
    return partial(_client, every=accumulate)


def _client(context: RunContext, every: int) -> Worker:
    if context.compression is None:
        return AllreduceWorker(context, every)
    from psgd.strategies.compressed_allreduce import CompressedAllreduceWorker

    return CompressedAllreduceWorker(context, every, context.compression)


class AllreduceWorker(CheckpointVotes):
    """A worker. Implements `Worker`.

    `grads` is registered memory in which the all-reduce takes place: after `step` it holds no gradient (with
    `accumulate` above 1 it keeps it). With a progress thread on all ranks, buckets are all-reduced while backward still
    computes. The final parameters are the same bits on all workers.

    A cut lies after an optimizer's step; worker 0 saves what all have alike.
    """

    def __init__(self, context: RunContext, accumulate: int) -> None:
        super().__init__()
        self.params = context.params
        size, dtype = context.params.size, context.params.dtype
        self._comm = Communicator(context.mesh.worker)  # type: ignore[arg-type]
        self._rounds = StatusRounds(self._comm, context.metrics, self)
        self.algorithms = {"Allreduce": self._comm.algorithm("Allreduce", context.params.nbytes)}
        self._stepper = context.optimizer.create(context.params)
        self._metrics, self._factor = context.metrics, context.optimizer.reduction_factor
        self._every = accumulate
        self._sum = registered(self._comm, context.params)
        self.grads: Vector = self._sum if accumulate == 1 else np.zeros_like(context.params)
        count = max(1, -(-self._sum.nbytes // BUCKET_BYTES))
        self._overlaps = count > 1 and not on_device(context.params) and _all_have_threads(self._comm)
        ranges = split(size, count, max(1, ALIGN_BYTES // dtype.itemsize)) if self._overlaps else [range(size)]
        self._buckets = [(r.start, self._sum[r.start : r.stop], self.grads[r.start : r.stop]) for r in reversed(ranges)]
        self._requests: list[Request] = []
        self.version = self._applied = 0
        self.waited_s = 0.0
        self.stop = False
        self._calls = self._pending = 0  # steps and samples in the sum before this step
        self._unit = 1
        self._resumed = False
        self._prepared = 0  # buckets that have this step's gradient
        self._announced = 0  # samples of the gradient that is on its way through `overlap`
        self._final = 0
        none = self._sum[:0]
        kernels.weigh(none, none, 1.0)
        kernels.add_weighted(none, none, 1.0)
        self.bytes_sent = self.bytes_received = 0

    def start(self) -> None:
        """See `Worker`."""
        self._comm.Allreduce(MPI.IN_PLACE, self._sum)  # of zeros: compiles now, so that no step waits for it
        self._rounds.begin(self.params)
        if self._resumed:
            for array in self._stepper.state:
                self._comm.Bcast(array, 0)

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """See `Worker`. None without a progress thread, for a vector of one bucket, and for steps that only sum."""
        if not self._overlaps or not samples or self._calls + 1 < self._every:
            return None
        if self._prepared:
            raise UsageError("overlap: a gradient is on its way already: call step() before the next one")
        self._announced = samples
        self._final = self._sum.size
        return self._ready

    def _ready(self, part: range) -> None:
        """Starts the buckets that are final with this range of the gradient."""
        if not part:
            return
        if not self._announced or part.stop != self._final:
            expected = f"a range that ends at {self._final}" if self._announced else "overlap() before each gradient"
            raise UsageError(
                f"overlap: expected {expected} (ranges come from the vector's end to its start), got {part}"
            )
        self._final = part.start
        while self._prepared < len(self._buckets) and self._buckets[self._prepared][0] >= part.start:
            self._launch(self._announced)

    def step(self, samples: int, loss: float) -> None:
        """See `Worker`."""
        began = time.perf_counter()
        self.saving = False
        if self._prepared and self._announced != samples:
            raise UsageError(f"step: expected the {self._announced} samples that overlap() was told of, got {samples}")
        self._rounds.note(samples, loss)
        if self._calls + 1 == self._every:
            self._close(samples)
        else:
            while self._prepared < len(self._buckets):
                self._prepare(samples)
            self._prepared = 0
            self._calls += 1
            self._pending += samples
        self.waited_s += time.perf_counter() - began
        self._rounds.waited_s = self.waited_s

    def _prepare(self, samples: int) -> None:
        """Adds this step's gradient to the next bucket of the sum, weighed by its samples."""
        _, into, grad = self._buckets[self._prepared]
        self._prepared += 1
        weight = samples / self._unit
        if not samples:
            if not self._pending:
                into.fill(0)
        elif self._pending:
            kernels.add_weighted(into, grad, weight)
        elif self._every > 1:
            kernels.weigh(into, grad, weight)
        elif weight != 1.0:
            np.multiply(into, into.dtype.type(weight), out=into)

    def _launch(self, samples: int) -> None:
        part = self._buckets[self._prepared][1]
        self._prepare(samples)
        self._requests.append(self._comm.Iallreduce(MPI.IN_PLACE, part))

    def _close(self, samples: int, done: bool = False) -> None:
        """Sums over all workers and takes the step."""
        if self._overlaps:
            came = time.perf_counter()
            while self._prepared < len(self._buckets):
                self._launch(samples)
            for request in self._requests:
                request.Wait()
            self._requests.clear()
            total = self._rounds.exchange(done=done, came=came)
        else:  # in this order a round without samples moves nothing
            self._prepare(samples)
            total = self._rounds.exchange(done=done)
            if total:
                self._comm.Allreduce(MPI.IN_PLACE, self._sum)
        if self._overlaps or total:
            self._rounds.count_allreduce(self._sum.nbytes)
        self._prepared = self._announced = self._calls = self._pending = 0
        self.stop = self._rounds.stop
        if total:
            self._stepper.take(self._sum, self._factor * self._unit / total, self._applied)
            self.version = self._stepper.version
            self._applied += total
            self._unit = _power_of_two(int(self._rounds.samples.max()))
            if self._comm.rank == 0:
                self._metrics.progress(self._applied, self.version, self._stepper.lr)
        self.agree(self._rounds.wish, self.version)

    def report(self, accuracy: float, loss: float) -> None:
        """See `Worker`."""
        self._rounds.report(accuracy, loss)

    def state(self) -> State:
        """See `Worker`."""
        alike = {"params": self.params} | self._stepper.arrays if self._comm.rank == 0 else {}
        facts = {"version": self.version, "samples": self._applied, "unit": self._unit}
        return State(dict(alike), facts | self.facts())

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Worker`. Any number of workers goes on exactly."""
        saved = keeping.saved(state, others)
        if self._comm.rank == 0:
            first = keeping.first({"params": self.params}, saved)
            keeping.put_back({"params": self.params} | self._stepper.arrays, first)
        self._resumed = True
        self.version = self._rounds.version = self._stepper.version = keeping.common(saved, "version")
        self._applied, self._unit = keeping.common(saved, "samples"), int(saved[0].facts.get("unit", 1))
        self.resume(saved)
        return []

    def finish(self) -> None:
        """See `Worker`. Steps that `accumulate` has not applied yet are applied."""
        while not self._rounds.all_done:
            self._close(0, done=True)
            if self.saving:
                self.on_cut()
        self.bytes_sent = self.bytes_received = self._rounds.bytes_sent
        self._comm.free()


def _power_of_two(samples: int) -> int:
    """The largest power of two that divides it.

    Gradients are weighed by samples over this: for batches of a power of two by 1, which needs no pass. A power of two
    changes no bit of any sum, only its exponent.
    """
    return samples & -samples


def _all_have_threads(comm: Communicator) -> bool:
    """Whether non-blocking calls go on by themselves on all ranks. Collective, blocks."""
    flag = np.array([comm.threaded], np.int64)
    comm.Allreduce(MPI.IN_PLACE, flag, MPI.MIN)
    return bool(flag[0])
