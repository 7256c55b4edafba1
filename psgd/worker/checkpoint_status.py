"""Whether a worker stands at a checkpoint, and what it has requested: the same for the workers of all strategies."""

from collections.abc import Callable

from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP


class CheckpointStatus:
    """One worker's.

    A checkpoint is a point of the run at which the states of all ranks fit each other: all that was sent before it has
    been received, nothing that was sent after it.

    Attributes:
        reached: the newest `step` ended at a checkpoint; `state()` is what to save there.
        stopping: all stop after that checkpoint; the worker's `stop` is true then too.
        step: what the newest checkpoint is called, the same on all ranks: a number of steps that rises from one to
            the next.
        on_reached: called by `finish` where a checkpoint is reached while it waits. The connection sets it before
            `start`.
        request: what this worker wants and has not passed on yet: 0, `SAVE` or `SAVE_AND_STOP`.
        every: steps of the whole run from one checkpoint to the next, of each worker where they do not keep pace; 0 is
            never. The connection sets it before `start`; where servers count steps, workers ignore it.
    """

    def __init__(self) -> None:
        self.reached = self.stopping = False
        self.step = self.request = self.every = 0
        self.on_reached: Callable[[], object] = nobody_saves

    def ask(self, stop: bool) -> None:
        """This worker wants a checkpoint soon, and with `stop` that all stop after it. Asking twice is asking once."""
        self.request = max(self.request, SAVE_AND_STOP if stop else SAVE)


def nobody_saves() -> None:
    """What `on_reached` is outside of a connection's block."""
