"""A worker that is alone: a single rank takes the servers' step itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore, vectors
from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.metrics.run_metrics import RunMetrics
from psgd.server.shard import Shard
from psgd.worker.base import WorkerBase
from psgd.worker.checkpoint_status import CheckpointStatus

Vector = NDArray[np.floating]


class LocalWorker(WorkerBase):
    """A single rank: the same step, taken here."""

    def __init__(self, shard: Shard, grads: Vector, metrics: RunMetrics) -> None:
        super().__init__(shard.params, grads, 0, CheckpointStatus())
        self._next = 0  # version at which the next checkpoint is due
        self._shard = shard
        self._metrics = metrics
        self._parts = [grads[r.start : r.stop] for r in shard.ranges]
        self._pushes = 0

    def start(self) -> None:
        self._metrics.restart()
        self._plan()

    def step(self, samples: int, loss: float) -> None:
        shard = self._shard
        self._pushes += 1
        if samples:
            self._metrics.applied(0, samples, loss, 0)
        shard.apply(((0, samples, 1.0),) if samples else (), self._fetch, _do_nothing, _do_nothing)
        self._metrics.progress(shard.samples, shard.version, shard.lr)
        self.version = shard.version
        checkpoint = self.checkpoint
        checkpoint.reached = checkpoint.request > 0 or (checkpoint.every > 0 and self.version >= self._next)
        if checkpoint.reached:
            checkpoint.step, checkpoint.stopping = self.version, checkpoint.request == SAVE_AND_STOP
            self.stop = self.stop or checkpoint.stopping
            checkpoint.request = 0
            self._plan()

    def _plan(self) -> None:
        if every := self.checkpoint.every:
            self._next = (self.version // every + 1) * every

    def state(self) -> State:
        state, size = self._shard.saved(), self.params.size
        log = {"clocks": [self._pushes], "positions": [self._shard.samples]}
        state.facts.update(range=[0, size, size], cut=sorted(state.tensors), log=log)
        return state

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        # A single worker of a server has a state of its own, which has no parameters: those are the server's then.
        own = [state] if state is not None and vectors.is_sharded(state) else []
        parts = own or [other for other in others if vectors.is_sharded(other)]
        if not parts:
            return self._take_from_peers(list(others))
        self._shard.restore(vectors.assemble(parts), parts[0].facts)
        self.version, self._pushes = self._shard.version, parts[0].facts["log"]["clocks"][0]
        return []

    def _take_from_peers(self, others: Sequence[State]) -> list[str]:
        """What several workers without a server have saved."""
        arrays = self._shard.optimizer.arrays
        kept = restore.mean(arrays, others)
        facts = {name: restore.common(others, name) for name in ("version", "samples")}
        self._shard.restore({"params": vectors.weights(others), **arrays}, {**facts, "open": 0})
        self.version = self._shard.version
        return ["the workers' optimizer's state: its mean" if kept else "the optimizer's state: begins anew"]

    def _fetch(self, worker: int, segment: int) -> Vector:
        return self._parts[segment]

    def report(self, accuracy: float, loss: float) -> None:
        self._metrics.report(accuracy, loss)
        self.stop = self._metrics.stop

    def finish(self) -> None:
        """Nobody else has anything to end."""


def _do_nothing(segment: int) -> None:
    pass
