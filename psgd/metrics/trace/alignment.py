"""Moments of a rank's clock as rank 0's had them. Needs no MPI: readers of traces use it too."""

from typing import NamedTuple

import numpy as np


class Offset(NamedTuple):
    """How far a rank's clock is ahead of rank 0's.

    Attributes:
        at: the moment, by the rank's clock.
        seconds: how far.
        error: how wrong that may be, in seconds.
    """

    at: float
    seconds: float
    error: float


def aligned(times: np.ndarray, first: Offset, last: Offset | None = None) -> np.ndarray:
    """Moments of a rank's clock as rank 0's clock had them.

    Args:
        times: seconds, float64.
        first: the offset at the start.
        last: at the end; None where the run did not come so far: the first then holds all the time.
    """
    slope = 0.0
    if last is not None and last.at > first.at:
        slope = (last.seconds - first.seconds) / (last.at - first.at)
    moments: np.ndarray = times - (first.seconds + slope * (times - first.at))
    return moments
