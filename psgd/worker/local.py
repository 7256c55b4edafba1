"""A worker that is alone: a single rank takes the servers' step itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint import vectors
from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.metrics.run_metrics import RunMetrics
from psgd.server.shard import Shard
from psgd.worker.interface import nobody_saves

Vector = NDArray[np.floating]


class LocalWorker:
    """A single rank: the same step, taken here. Implements `Worker`."""

    def __init__(self, shard: Shard, grads: Vector, metrics: RunMetrics) -> None:
        self.params, self.grads = shard.params, grads
        self.version = 0
        self.waited_s = 0.0
        self.stop = self.saving = self.leaving = False
        self.cut = 0
        self.on_cut = nobody_saves
        self._asked = self._every = self._next = 0
        self.bytes_sent = self.bytes_received = 0
        self._shard = shard
        self._metrics = metrics
        self._parts = [grads[r.start : r.stop] for r in shard.ranges]
        self._pushes = 0

    def start(self) -> None:
        """See `Worker`."""
        self._metrics.restart()

    def overlap(self, samples: int) -> None:
        """See `Worker`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Worker`."""
        shard = self._shard
        self._pushes += 1
        if samples:
            self._metrics.applied(0, samples, loss, 0)
        shard.apply(((0, samples, 1.0),) if samples else (), self._fetch, _do_nothing, _do_nothing)
        self._metrics.progress(shard.samples, shard.version, shard.lr)
        self.version = shard.version
        self.saving = self._asked > 0 or (self._every > 0 and self.version >= self._next)
        if self.saving:
            self.cut, self.leaving = self.version, self._asked == SAVE_AND_STOP
            self.stop = self.stop or self.leaving
            self._asked = 0
            self._plan()

    def _plan(self) -> None:
        if self._every:
            self._next = (self.version // self._every + 1) * self._every

    def ask_save(self, stop: bool) -> None:
        """See `Worker`."""
        self._asked = max(self._asked, SAVE_AND_STOP if stop else SAVE)

    def save_every(self, steps: int) -> None:
        """See `Worker`."""
        self._every = steps
        self._plan()

    def state(self) -> State:
        """See `Worker`."""
        state, size = self._shard.saved(), self.params.size
        log = {"clocks": [self._pushes], "positions": [self._shard.samples]}
        state.facts.update(range=[0, size, size], cut=sorted(state.tensors), log=log)
        return state

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Worker`."""
        # A single worker of a server has a state of its own, which has no parameters: those are the server's then.
        own = [state] if state is not None and vectors.is_cut(state) else []
        parts = own or [other for other in others if vectors.is_cut(other)]
        if not parts:
            return self._take_from_peers(list(others))
        self._shard.restore(vectors.assemble(parts), parts[0].facts)
        self.version, self._pushes = self._shard.version, parts[0].facts["log"]["clocks"][0]
        self._plan()
        return []

    def _take_from_peers(self, others: Sequence[State]) -> list[str]:
        """What several workers without a server have saved."""
        arrays = self._shard.optimizer.arrays
        kept = keeping.mean(arrays, others)
        facts = {name: keeping.common(others, name) for name in ("version", "samples")}
        self._shard.restore({"params": vectors.weights(others), **arrays}, {**facts, "open": 0})
        self.version = self._shard.version
        self._plan()
        return ["the workers' optimizer's state: its mean" if kept else "the optimizer's state: begins anew"]

    def _fetch(self, worker: int, segment: int) -> Vector:
        return self._parts[segment]

    def report(self, accuracy: float, loss: float) -> None:
        """See `Worker`."""
        self._metrics.report(accuracy, loss)
        self.stop = self._metrics.stop

    def finish(self) -> None:
        """See `Worker`."""


def _do_nothing(segment: int) -> None:
    pass
