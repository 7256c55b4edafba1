"""What a step changes on a worker before it is known to be complete: kept, and put back where it is made again."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Rollback:
    """Of arrays that are written in place: residuals, momentum, thresholds. Memory for as much is made once.

    Args:
        arrays: of a worker.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        self._arrays = [(array, np.empty_like(array)) for array in arrays]
        self._kept = False

    def keep(self) -> None:
        """They are about to change."""
        for array, copy in self._arrays:
            copy[:] = array
        self._kept = True

    def release(self) -> None:
        """They have not changed since, or are to stay so."""
        self._kept = False

    def put_back(self) -> None:
        """They are as at the last `keep`, unless there was a `release` since."""
        for array, copy in self._arrays if self._kept else ():
            array[:] = copy
        self._kept = False
