"""What a pipeline needs of its last stage, whoever wrote it: psgd's own model, or another library's module."""

from typing import Any, Protocol, runtime_checkable

from psgd.kernels.array import Array


@runtime_checkable
class GoesToGpu(Protocol):
    """A stage of another library, which knows how its passes run on a GPU. psgd's own are in a `CapturedStage`."""

    def on_gpu(self, gpu: Any, most: int) -> "RunsOnGpu":
        """Its passes take and give arrays on this GPU from now on; returns what has them.

        Args:
            gpu: `psgd.parallel.stages.gpu.Gpu`.
            most: microbatches of a batch.
        """


class RunsOnGpu(Protocol):
    """A stage of another library that runs its passes on a GPU."""

    def begin(self) -> None:
        """A batch begins."""

    def done(self) -> bool:
        """Whether the batch's losses are there. Does not block."""

    def turn(self) -> None:
        """What refers to parameters and gradients refers to the bound ones from now on, at the latest."""


@runtime_checkable
class WithLoss(Protocol):
    """A stage that ends in a loss, as `psgd.nn.model.Model` does."""

    def loss(self, ctx: Any, y: Array, *, batch_size: int) -> tuple[Array, float]:
        """Between `forward` and `backward`: what backward begins with, and this part of the batch's mean loss."""

    def evaluate(self, ctx: Any, x: Array, y: Array, tally: Any) -> tuple[float, float]:
        """How many samples are right, and their summed loss."""
