"""What a worker keeps whose updates are made small: what its codec has left to say, and the momentum before it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore
from psgd.checkpoint.state import State
from psgd.compression.options import BeforeEncoding
from psgd.kernels.codecs.codec import Codec

Arrays = dict[str, NDArray[Any]]


def left_over(codec: Codec | None, before: BeforeEncoding) -> Arrays:
    """Its arrays by name, as views."""
    arrays = {} if codec is None else {f"codec.{name}": array for name, array in codec.arrays().items()}
    return arrays | ({"velocity": before.velocity} if before.velocity.size else {})


def share_left_over(
    codec: Codec | None, before: BeforeEncoding, others: Sequence[State], first: bool, factor: float
) -> list[str]:
    """With another number of workers: nothing that was left to say is lost, the first worker says it for all.

    Args:
        codec: this worker's.
        before: this worker's.
        others: the states of all workers there were.
        first: whether this is the first worker, which gets the sum of the residuals; others get none.
        factor: of the mean of the codecs' own momentum.

    Returns:
        What could not be kept as it was.
    """
    arrays = left_over(codec, before)
    residual = {name: arrays.pop(name) for name in list(arrays) if name == "codec.residual"}
    lines = []
    if residual and first:
        restore.total(residual, others)
    if residual and restore.has(residual, others):
        lines.append("residuals: worker 0 has the sum of all")
    for name, array in arrays.items():
        if array.size > 1:
            restore.mean({name: array}, others)
            if name.startswith("codec."):
                np.multiply(array, array.dtype.type(factor), out=array)
        elif found := restore.has({name: array}, others):  # a threshold, a count
            restore.put_back({name: array}, found[0])
    speeds = {name: array for name, array in arrays.items() if array.size > 1}
    if speeds:
        known = restore.has(speeds, others)
        lines.append(f"momentum: {'each worker begins with the mean' if known else 'begins anew'}")
    return lines
