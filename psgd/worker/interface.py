"""What a training loop holds: parameters to read, gradients to fill, and `step()`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import State
from psgd.worker.checkpoint_status import CheckpointStatus

if TYPE_CHECKING:
    from psgd.metrics.trace.span import Traceable

Vector = NDArray[np.floating]


class Worker(Protocol):
    """The contract that the worker of every strategy keeps; `psgd.worker.base.WorkerBase` is its common part.

    A caller makes it, may `restore` it, and calls `start`. Then it repeats: fill `grads`, `step`. It ends with
    `finish`. Everything is called from one thread.

    Attributes:
        params: 1-D parameters, the worker's to write: read them between two calls. The caller's own vector, but with
            hogwild the node's common one, which others write to at any moment.
        grads: 1-D gradient of the mean loss over the batch, of the size and dtype of `params`. The caller's to write
            between `start` and `finish`, but for the time of a call; what it holds after a step is not defined. It may
            be another array after `start` than before.
        version: optimizer's steps behind `params`, as far as this worker knows.
        waited_s: seconds spent in `step` (hogwild and easgd: in exchanges with others).
        stop: the run is to end early: a target was reached, or all stop after a checkpoint. The caller leaves its loop.
        checkpoint: whether this worker stands at a checkpoint, and what it has requested.
        bytes_sent, bytes_received: of this worker, where it counts them itself; final after `finish`.
        accumulates: it takes the gradients of several steps together by itself (`RunContext.accumulate`).
    """

    params: Vector
    grads: Vector
    version: int
    waited_s: float
    stop: bool
    checkpoint: CheckpointStatus
    bytes_sent: int
    bytes_received: int
    accumulates: bool

    def start(self) -> None:
        """Begins where worker 0's parameters are, or after `restore` where the checkpoint was. Collective, blocks."""

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """Called before a gradient of so many samples is computed, or not at all. Does not block.

        Returns:
            A function to be called with each range of `grads` that is final, from the vector's end to its start, after
            which the range is the worker's. None where the strategy has no use for it.
        """

    def step(self, samples: int, loss: float) -> None:
        """Takes in `grads` and brings `params` up to date. Blocks until this worker may continue.

        Args:
            samples: behind the gradient; with 0, `grads` is not read, and the worker only keeps pace.
            loss: mean loss over them.
        """

    def report(self, accuracy: float, loss: float) -> None:
        """Tells the rank that counts of an evaluation. Does not wait for others."""

    def finish(self) -> None:
        """No more steps; returns with the final parameters once all workers are done. Collective, blocks."""

    def spans(self) -> "list[Traceable]":
        """What a trace times inside of `step`, each in its own place; empty where there is nothing to tell apart."""

    def state(self) -> State:
        """What this rank saves at a checkpoint. Views: to be copied before the next step.

        Facts have `version` and `samples`, those applied by all workers together; on worker 0, where not all workers
        save, `savers`: who does.
        """

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """Restores what was saved, before `start`.

        Args:
            state: this worker's own; None where the number of workers is another, or where it has saved none.
            others: all of that checkpoint, those of servers first.

        Returns:
            A line for each thing that could not be kept.
        """
