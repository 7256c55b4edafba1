"""For tests of strategies without servers: starts, samples, and two nodes on one machine."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from harness.oracle import two_nodes
from psgd.worker.serverless import shared_parameters

SAMPLES = [3, 5, 2, 7, 4]


def start_of(comm: MPI.Intracomm, n: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Only worker 0's values may matter."""
    return np.cos(np.arange(n)).astype(dtype) if comm.rank == 0 else np.full(n, np.nan, dtype)


@contextlib.contextmanager
def nodes_of_two() -> Iterator[None]:
    """Even ranks are one node, odd ranks another."""
    real = shared_parameters.ranks_of_node
    shared_parameters.ranks_of_node = lambda comm: [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
    try:
        with two_nodes():
            yield
    finally:
        shared_parameters.ranks_of_node = real
