"""The bytes of a model's activations: its buffers for one batch, counted without being made."""

from psgd.estimate.counting import CountingArrays
from psgd.nn.model import Model


def count(model: Model, batch: int) -> int:
    """Returns the bytes of the buffers of one pass forward and backward, those of the loss included.

    Args:
        model: bound to nothing, or to vectors on the host.
        batch: samples of a pass.
    """
    counting = CountingArrays()
    model.context(batch, xp=counting)
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
