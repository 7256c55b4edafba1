"""Who has the cores: ranks of MPI one each, a peer in processes of its own all of them while MPI's ranks sleep."""

import os
import time

import numpy as np
from mpi4py import MPI

from psgd.launch.bench.peers import processes


def pin(comm: MPI.Intracomm) -> None:
    """Gives each rank of a node a core of its own, where the cores suffice and the system can. Collective."""
    if not hasattr(os, "sched_setaffinity"):
        return
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        usable = np.zeros(4096, np.uint8)
        usable[list(os.sched_getaffinity(0))] = 1
        node.Allreduce(MPI.IN_PLACE, usable, MPI.MAX)
        cores = np.flatnonzero(usable)
        if node.size <= cores.size:
            os.sched_setaffinity(0, [int(cores[node.rank])])
    finally:
        node.Free()


def unpin() -> None:
    """Gives this rank all cores of its launcher: the threads of CUDA and NCCL must not share one with it."""
    processes.bind(processes.launcher_cores())


def quiet_barrier(comm: MPI.Intracomm) -> None:
    """A barrier that sleeps while it waits, so that a peer outside MPI has the cores to itself."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)
