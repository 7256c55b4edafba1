"""The bytes of a model's activations: its buffers for one batch, counted without being made."""

from collections.abc import Callable
from typing import TypeVar

from psgd.estimate.counting import CountingArrays
from psgd.nn.recompute import segments
from psgd.nn.stage import Stage

S = TypeVar("S", bound=Stage)


def count(model: Stage, batch: int, wants_dx: bool = False, device: str = "cpu", trains: bool = True) -> int:
    """Returns the bytes of the buffers of one pass forward and backward, those of the loss included.

    Args:
        model: bound to nothing, or to vectors on the host.
        batch: samples of a pass.
        wants_dx: the input's gradient is wanted too, as of a stage behind another.
        device: "cpu" or "cuda": on a GPU some buffers are for the whole batch.
        trains: False: of a pass forward alone.
    """
    counting = CountingArrays(device)
    model.context(batch, wants_dx, counting, trains)
    return counting.nbytes


def largest_batch(bytes_of: Callable[[int], int], available: int, most: int) -> int:
    """Returns how many samples take at most `available` bytes: 0 to `most`.

    Args:
        bytes_of: what so many samples take; rises with them.
        available: bytes.
        most: samples.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_of(middle) <= available:
            low = middle
        else:
            high = middle - 1
    return low


def recomputed(model: S, wish: str | None, batch: int, device: str = "cpu") -> S:
    """Returns the model with activations recomputed as wished: `psgd.nn.recompute.segments.choose`.

    Args:
        model: bound to nothing.
        wish: all, a number of layers, bytes; None leaves it as it is.
        batch: samples of a pass.
        device: as `count`.

    Raises:
        UsageError: bytes that are too few.
    """
    if wish is None:
        return model

    def count_with(chosen: segments.Segments) -> int:
        return count(model.recomputed(chosen), batch, device=device)

    return model.recomputed(segments.choose(wish, len(model.layers), count_with))
