"""The bytes of a model's activations: its buffers for one batch, counted without being made."""

from typing import TypeVar

from psgd.estimate.counting import CountingArrays
from psgd.nn.model import Model
from psgd.nn.recompute import segments
from psgd.nn.stage import Stage

S = TypeVar("S", bound=Stage)


def count(model: Stage, batch: int, wants_dx: bool = False) -> int:
    """Returns the bytes of the buffers of one pass forward and backward, those of the loss included.

    Args:
        model: bound to nothing, or to vectors on the host.
        batch: samples of a pass.
        wants_dx: the input's gradient is wanted too, as of a stage behind another.
    """
    counting = CountingArrays()
    model.context(batch, wants_dx, counting)
    return counting.nbytes


def largest_batch(model: Model, available: int, most: int) -> int:
    """Returns how many samples' activations are at most `available` bytes: 0 to `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if count(model, middle) <= available:
            low = middle
        else:
            high = middle - 1
    return low


def recomputed(model: S, wish: str | None, batch: int) -> S:
    """Returns the model with activations recomputed as wished: `psgd.nn.recompute.segments.choose`.

    Args:
        model: bound to nothing.
        wish: all, a number of layers, bytes; None leaves it as it is.
        batch: samples of a pass.

    Raises:
        UsageError: bytes that are too few.
    """
    if wish is None:
        return model

    def count_with(chosen: segments.Segments) -> int:
        return count(model.recomputed(chosen), batch)

    return model.recomputed(segments.choose(wish, len(model.layers), count_with))
