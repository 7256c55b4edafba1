"""MPI alone: `mpiexec -n 2 exchange_alone.py BYTES,BYTES,..` prints the seconds of Isend and Irecv by size, as JSON."""

import json
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI


def main(sizes: list[int]) -> None:
    """Rank 1 sends a vector and gets one back, as a worker does that pushes and pulls."""
    comm, found = MPI.COMM_WORLD, {}
    for nbytes in sizes:
        params, grads = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
        seconds = []
        for _ in range(2000 if nbytes <= 1 << 16 else 60):
            start = time.perf_counter()
            if comm.rank == 1:
                MPI.Request.Waitall([comm.Irecv(params, 0), comm.Isend(grads, 0)])
            else:
                comm.Irecv(grads, 1).Wait()
                comm.Isend(params, 1).Wait()
            seconds.append(time.perf_counter() - start)
        found[nbytes] = comm.bcast(statistics.median(seconds), 1)
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1].split(",")])
