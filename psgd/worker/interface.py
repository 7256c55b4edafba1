"""What a training loop holds: parameters to read, gradients to fill, and `step()`."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import State

Vector = NDArray[np.floating]


class Worker(Protocol):
    """The worker interface that every strategy meets.

    Attributes:
        params: 1-D parameters; overwritten by `step`.
        grads: 1-D gradient of the mean loss over the batch, for the caller to fill.
        version: groups applied to `params`.
        waited_s: seconds spent in `step`.
        stop: the server asks to stop early (a target was reached, or all stop after a cut).
        saving: the newest `step` ended at a cut: all ranks stand at the same point of the run, `state()` says it all.
        leaving: that cut was asked for with `stop`; `stop` is true then too.
        cut: what the newest cut is called, the same on all ranks: a number of steps that rises from cut to cut.
        on_cut: set by the connection before `start`. `finish` calls it where a cut is made while it waits.
        bytes_sent, bytes_received: of this worker, where it counts them itself; whole when it has finished.
    """

    params: Vector
    grads: Vector
    version: int
    waited_s: float
    stop: bool
    saving: bool
    leaving: bool
    cut: int
    on_cut: Callable[[], None]
    bytes_sent: int
    bytes_received: int

    def start(self) -> None:
        """Gets the first parameters, or after `restore` goes on from where it was. Blocks."""

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """See `psgd.connection.Connection.overlap`."""

    def step(self, samples: int, loss: float) -> None:
        """Pushes `grads` and pulls `params`. Blocks until this worker may go on."""

    def report(self, accuracy: float, loss: float) -> None:
        """Tells server 0 of an evaluation. Does not block for long."""

    def finish(self) -> None:
        """No more pushes; returns with the final parameters once all workers are done. Blocks."""

    def ask_save(self, stop: bool) -> None:
        """This rank wants a cut soon, and with `stop` that all stop after it. Asking twice is asking once."""

    def save_every(self, steps: int) -> None:
        """Asks for a cut after every so many steps of the whole run; of each worker where they do not keep pace."""

    def state(self) -> State:
        """What this rank has to save at a cut. Views: to be copied before the next step.

        Facts have `version` and `samples`, those applied by all workers together; on worker 0, where not all workers
        save, `savers`: who does.
        """

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """Takes up what was saved, before `start`.

        Args:
            state: this worker's own; None where the number of workers is another, or where it has saved none.
            others: all of that cut, those of servers first.

        Returns:
            A line for each thing that could not be kept.
        """


def nobody_saves() -> None:
    """What `on_cut` is until the connection sets it."""
