"""How the squares of a gradient are summed where the vector is one part of a model that several ranks have."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Sums = NDArray[np.float64]
Wait = Callable[[MPI.Request], None]


class Squares(Protocol):
    """Sums in an order that does not depend on how the model is cut, for the norm of the whole model's gradient.

    Attributes:
        wait: how `total` waits for a request; set by who knows of an alarm to look for.
    """

    wait: Wait

    def local(self, grad: NDArray[np.floating], start: int) -> Sums:
        """Sums of squares by parameter: those that this rank sums for all, in its own order.

        Args:
            grad: elements of this rank's vector, from element `start` on; the parameters' others count nothing.
            start: of the first one.
        """

    def total(self, sums: Sums) -> float:
        """Adds the sums of all parts, each parameter once; the same bits on all ranks. Collective, blocks."""
