"""What the workers of all strategies have in common: fields, the time spent in steps, and saving what they declare."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from psgd.checkpoint import declared
from psgd.checkpoint.state import State
from psgd.worker.checkpoint_status import CheckpointStatus
from psgd.worker.interface import Vector

if TYPE_CHECKING:
    from psgd.metrics.trace.span import Traceable


class WorkerBase:
    """The common part of a worker; the contract is that of `psgd.worker.interface.Worker`.

    A strategy writes `_take_step`, or `step` itself where each call counts or its time is not spent in waiting. It
    declares in `_kept` what it keeps for a checkpoint, and need not save or restore anything itself.
    """

    accumulates = False

    def __init__(self, params: Vector, grads: Vector, index: int, checkpoint: CheckpointStatus) -> None:
        self.params, self.grads = params, grads
        self.version = 0
        self.waited_s = 0.0
        self.stop = False
        self.checkpoint = checkpoint
        self.bytes_sent = self.bytes_received = 0
        self._index = self._saves_as = index  # whose part of what all have alike it saves
        self._resumed = False

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        return None

    def step(self, samples: int, loss: float) -> None:
        began = time.perf_counter()
        self.checkpoint.reached = False
        self._take_step(samples, loss)
        self.waited_s += time.perf_counter() - began

    def _take_step(self, samples: int, loss: float) -> None:
        """A step, whose time counts as `waited_s`."""
        raise NotImplementedError

    def _kept(self) -> list[declared.Item]:
        """What there is to save, in the order in which it is restored. Called at each checkpoint and at `restore`."""
        raise NotImplementedError

    def spans(self) -> "list[Traceable]":
        return []

    def state(self) -> State:
        return declared.save(self._kept(), self._saves_as)

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        self._resumed = True
        lines = declared.restore_all(self._kept(), state, others, self._index)
        return lines + self._after_restore(state, others)

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        """Sets what follows from what was restored; arguments and result are those of `restore`."""
        return []
