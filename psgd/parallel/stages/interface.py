"""What a pipeline needs of its last stage, whoever wrote it: psgd's own model, or another library's module."""

from typing import Any, Protocol, runtime_checkable

from psgd.kernels.array import Array


@runtime_checkable
class WithLoss(Protocol):
    """A stage that ends in a loss, as `psgd.nn.model.Model` does."""

    def loss(self, ctx: Any, y: Array, *, batch_size: int) -> tuple[Array, float]:
        """Between `forward` and `backward`: what backward begins with, and this part of the batch's mean loss."""

    def evaluate(self, ctx: Any, x: Array, y: Array, tally: Any) -> tuple[float, float]:
        """How many samples are right, and their summed loss."""
