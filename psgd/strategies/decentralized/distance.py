"""How far workers' parameters are from those that all are to have."""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives import Communicator


def largest(comm: Communicator, own: NDArray[np.floating], common: NDArray[np.floating]) -> float:
    """The largest |own - common| of any element on any worker. Collective, blocks; `own` is used up."""
    np.subtract(own, common, out=own)
    most = np.array([np.abs(own, out=own).max(initial=0.0)], np.float64)
    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    return float(most[0])
