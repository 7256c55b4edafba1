"""A worker that is alone: a single rank takes the servers' step itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore, vectors
from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.trace.span import Span, Traceable
from psgd.runtime.jsonable import section, wholes
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
        self._stepped()

    def _stepped(self) -> None:
        """Counts a step, and says whether a checkpoint lies behind it."""
        shard = self._shard
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

    def spans(self) -> list[Traceable]:
        return [Span(self._shard, "apply", "apply")]

    def state(self) -> State:
        state, size = self._shard.saved(), self.params.size
        log = {
            "actions": self._pushes,
            "version": self.version,
            "clocks": [self._pushes],
            "opened": 0,
            "positions": [self._shard.samples],
        }
        state.facts.update(range=[0, size, size], cut=sorted(state.tensors), log=log)
        return state

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        # A single worker of a server has a state of its own, which has no parameters: those are the server's then.
        own = [state] if state is not None and vectors.is_sharded(state) else []
        parts = own or [other for other in others if vectors.is_sharded(other)]
        optimizer, lines = self._shard.optimizer, []
        if parts:
            tensors, facts = vectors.assemble(parts), parts[0].facts
            clocks = wholes(section(facts, "log"), "clocks")
            self._pushes = clocks[0] if len(clocks) == 1 else 0
        else:  # workers without a server
            tensors = {"params": vectors.weights(others)}
            facts = {name: restore.common(others, name) for name in ("version", "samples")} | {"open": 0}
        if not all(name in tensors for name in optimizer.arrays):
            lines.append(self._take_momentum(others))
            tensors |= optimizer.arrays
        lines += self._take_residuals(tensors, others)
        self._shard.restore(tensors, facts)
        self.version = self._shard.version
        return lines

    def _take_momentum(self, others: Sequence[State]) -> str:
        """Fills the optimizer's arrays with what the workers had each for itself."""
        arrays = self._shard.optimizer.arrays
        if restore.mean(arrays, others):
            return "the workers' optimizer's state: its mean"
        velocities = [State({"state0": velocity}) for other in others if (velocity := _velocity(other)) is not None]
        if list(arrays) == ["state0"] and restore.mean(arrays, velocities):
            return "momentum before encoding: the workers' mean"
        return "the optimizer's state: reset"

    def _take_residuals(self, tensors: dict[str, NDArray[Any]], others: Sequence[State]) -> list[str]:
        """Adds to the parameters what workers without a server had left to send, which are changes of them."""
        if restore.has({"codec.residual": self.params}, others):
            residual = np.zeros(self.params.shape, self.params.dtype)
            restore.total({"codec.residual": residual}, others)
            tensors["params"] = restore.fitting("params", residual, tensors["params"]) + residual
            return ["residuals: added to the parameters"]
        if any(name.endswith(".residual") for other in others for name in other.tensors):
            return [
                "residuals: gradients that the workers had left to send are dropped, since a single rank sends none"
            ]
        return []

    def _fetch(self, worker: int, segment: int) -> Vector:
        return self._parts[segment]

    def report(self, accuracy: float, loss: float) -> None:
        self._metrics.report(accuracy, loss)
        self.stop = self._metrics.stop

    def finish(self) -> None:
        """Nobody else has anything to end; a group that was open when it resumed takes its step at the latest here."""
        if self._shard.open_samples:
            self.step(0, 0.0)


def _velocity(state: State) -> NDArray[Any] | None:
    """A worker's momentum before encoding: whole, or in parts for each server's codec."""
    parts = [name for name in state.tensors if name.endswith(".velocity") and name[0].isdecimal()]
    return vectors.joined(state.tensors, "velocity") if parts else state.tensors.get("velocity")


def _do_nothing(segment: int) -> None:
    pass
