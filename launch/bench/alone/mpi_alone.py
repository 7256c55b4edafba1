"""MPI alone: `mpiexec -n RANKS mpi_alone.py BYTES,BYTES,..` prints the seconds of an all-reduce by size, as JSON."""

import json
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI


def main(sizes: list[int]) -> None:
    """One rank: the median over the rounds of the slowest rank's time."""
    comm, found = MPI.COMM_WORLD, {}
    for nbytes in sizes:
        source, seconds = np.ones(nbytes // 4, np.float32), []
        send, recv = np.empty_like(source), np.empty_like(source)
        calls = 1 if nbytes >= 65536 else min(100, 65536 // nbytes)
        for _ in range(200 if nbytes <= 1 << 20 else 20):
            send[:] = source
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(calls):
                comm.Allreduce(send, recv)
            seconds.append(comm.allreduce((time.perf_counter() - start) / calls, MPI.MAX))
        found[nbytes] = statistics.median(seconds)
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1].split(",")])
