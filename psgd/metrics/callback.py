"""What a program may be told of its run while it lasts."""

from typing import Any


class Callback:
    """Override what you need; every method here does nothing. Pass instances to `psgd.connect(callbacks=[...])`.

    `ps` is what `psgd.connect` gives. `on_train_begin` and the methods of steps, epochs and evaluations are called on
    workers only, the others on servers too. An exception that a method raises is the program's own: it ends the run on
    all ranks, like one in the training loop.
    """

    def on_train_begin(self, ps: Any) -> None:
        """A worker has entered the block: `ps.params` are where all start."""

    def on_step_end(self, ps: Any, samples: int, loss: float) -> None:
        """`ps.step(samples, loss)` is about to return: `ps.params` and `ps.clock` are the new ones."""

    def on_epoch_end(self, ps: Any, epoch: int) -> None:
        """This worker's part of an epoch is over; `epoch` counts those that are complete, from 1.

        Needs the size of an epoch: `psgd train` knows it, a loop of your own passes
        `metrics=psgd.metrics.RunMetrics(workers, samples_per_epoch=...)`.
        """

    def on_evaluate(self, ps: Any, accuracy: float, loss: float) -> None:
        """This worker has reported an evaluation with `ps.report`."""

    def on_save(self, ps: Any, step: int) -> None:
        """This rank's part of the checkpoint of that step is copied; it is being written in the background."""

    def on_exception(self, ps: Any, error: BaseException) -> None:
        """The run ends with this error; the other ranks have been told."""

    def on_train_end(self, ps: Any) -> None:
        """The run has ended well; every rank has the final parameters."""
