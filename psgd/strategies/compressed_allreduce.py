"""Data parallelism by all-reduce with updates that a codec makes small.

Each worker encodes its part of a step, -lr n_k/n v_k with its own momentum v_k, and all workers add what all payloads
say, in the same order: replicas keep the same bits. What was left out stays with its worker and is sent later.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint.state import State
from psgd.collectives import Communicator
from psgd.collectives.compressed import CompressedAllreduce
from psgd.compression.options import BeforeEncoding, Compression
from psgd.compression.residuals import left_over, share_left_over
from psgd.kernels import accumulate
from psgd.worker.checkpoint_votes import CheckpointVotes
from psgd.worker.context import RunContext
from psgd.worker.status_rounds import StatusRounds

Vector = NDArray[np.floating]


class CompressedAllreduceWorker(CheckpointVotes):
    """A worker. Implements `psgd.worker.interface.Worker`.

    A step in which some worker's gradient is not finite is left out on all workers, and counted as dropped there;
    residuals and momentum stay as they are.

    Attributes:
        reduce: the compressed all-reduce; its codec's residual is what this worker has left to say.
    """

    def __init__(self, context: RunContext, every: int, compression: Compression) -> None:
        super().__init__()
        self.params = context.params
        size, dtype = context.params.size, context.params.dtype
        self._comm = Communicator(context.mesh.worker)  # type: ignore[arg-type]
        self._rounds = StatusRounds(self._comm, context.metrics, self)
        optimizer = context.optimizer
        self._metrics, self._schedule, self._factor = context.metrics, optimizer.schedule, optimizer.reduction_factor
        self._compression = compression
        self.reduce = CompressedAllreduce(self._comm, compression.codec(size, dtype))
        self._before = BeforeEncoding(compression, size, dtype, optimizer.clip_norm, context.mesh.workers)
        self._every = every
        self.grads: Vector = np.zeros(size, dtype)
        self._sum: Vector = np.zeros(size, dtype) if every > 1 else self.grads
        self._update: Vector = np.zeros(size, dtype)
        self._calls = self._pending = 0  # steps and samples in the sum
        self._applied = 0
        self.version = 0
        self.waited_s = 0.0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        accumulate.add_weighted(self._sum[:0], self._sum[:0], 1.0)
        self.reduce.compile(self._update)  # before anything is restored: it encodes what is left over

    def start(self) -> None:
        """See `Worker`."""
        self._rounds.begin(self.params)

    def overlap(self, samples: int) -> None:
        """See `Worker`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Worker`."""
        began = time.perf_counter()
        self.saving = False
        if self._every > 1 and samples:
            if not self._pending:
                self._sum.fill(0)
            accumulate.add_weighted(self._sum, self.grads, float(samples))
        self._calls += 1
        self._pending += samples
        self._rounds.note(samples, loss)
        if self._calls == self._every:
            self._close()
        self.waited_s += time.perf_counter() - began
        self._rounds.waited_s = self.waited_s

    def _close(self, done: bool = False) -> None:
        """Takes the step together."""
        samples, self._pending, self._calls = self._pending, 0, 0
        if not samples:
            self._sum.fill(0)
        elif self._every > 1:
            np.multiply(self._sum, self._sum.dtype.type(1 / samples), out=self._sum)
        came = time.perf_counter()
        fine = self.reduce.fine(self._sum)
        skipped = not fine.all()
        if skipped:
            self._rounds.forget()
            samples = 0
            if self._comm.rank == 0:
                for worker in np.flatnonzero(~fine).tolist():
                    self._metrics.dropped[worker] += 1
        total = self._rounds.exchange(done=done, came=came)
        self.stop = self._rounds.stop
        if total:
            self._apply(samples, total)
        self.agree(self._rounds.wish, self.version)

    def _apply(self, samples: int, total: int) -> None:
        """Says this worker's part of a step, of `samples` of `total`, and takes everyone's."""
        lr = self._schedule(self._applied)
        rate = -lr * self._factor * samples / total
        if not samples or not self._before(self._update, self._sum, self.params, rate):
            self._update.fill(0)  # what is left over may be said all the same
        every = self._compression.sync_every
        if self._applied < self._compression.warmup or (every and (self.version + 1) % every == 0):
            self.reduce.dense(self._update, self.params)
        else:
            self.reduce(self._update, self.params)
        self._applied += total
        self.version += 1
        if self._comm.rank == 0:
            self._metrics.progress(self._applied, self.version, lr)

    def report(self, accuracy: float, loss: float) -> None:
        """See `Worker`."""
        self._rounds.report(accuracy, loss)

    def state(self) -> State:
        """See `Worker`."""
        tensors = {"params": self.params} if self._comm.rank == 0 else {}
        return State(tensors | self._arrays(), {"version": self.version, "samples": self._applied} | self.facts())

    def _arrays(self) -> dict[str, Vector]:
        return left_over(self.reduce.codec, self._before)

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Worker`. With another number of workers the first one says what all had left to say."""
        saved = keeping.saved(state, others)
        if self._comm.rank == 0:
            keeping.put_back({"params": self.params}, keeping.first({"params": self.params}, saved))
        self.version = self._rounds.version = keeping.common(saved, "version")
        self._applied = keeping.common(saved, "samples")
        self.resume(saved)
        if state is not None:
            keeping.put_back(self._arrays(), state)
            return []
        velocities = len(others) / self._comm.size  # topk's are of shares of the step
        return share_left_over(self.reduce.codec, self._before, others, self._comm.rank == 0, velocities)

    def finish(self) -> None:
        """See `Worker`. What residuals hold then is not sent."""
        while not self._rounds.all_done:
            self._close(done=True)
            if self.saving:
                self.on_cut()
        self.bytes_sent = self.reduce.bytes_sent + self._rounds.bytes_sent
        self.bytes_received = self.reduce.bytes_received + self._rounds.bytes_sent
        self._comm.free()
