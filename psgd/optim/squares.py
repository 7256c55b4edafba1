"""How the squares of a gradient are summed where the vector is one part of a model that several ranks have."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.exact_squares import Limbs

Wait = Callable[[MPI.Request], None]


class Squares(Protocol):
    """Sums that do not depend on how the model is cut, for the norm of the whole model's gradient.

    Attributes:
        wait: how `total` waits for a request; set by who knows of an alarm to look for.
    """

    wait: Wait

    def local(self, grad: NDArray[np.floating], start: int) -> Limbs:
        """The digits of the exact sum of squares of what this rank sums for all.

        Args:
            grad: elements of this rank's vector, from element `start` on; the parameters' others count nothing.
            start: of the first one.
        """

    def total(self, limbs: Limbs) -> float:
        """Adds the sums of all parts, each parameter once; the same bits on all ranks. Collective, blocks.

        Args:
            limbs: of `local`, or the sum over parts of this rank's vector.
        """
