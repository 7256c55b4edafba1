"""Your own training loop on psgd's parameter server: least squares, checked against NumPy's own solution.

    mpirun -n 3 python examples/own_loop.py                       # 1 server, 2 workers, synchronous
    mpirun -n 5 python examples/own_loop.py async --servers 2     # 2 servers, 3 workers, asynchronous
    mpirun -n 3 python examples/own_loop.py allreduce --compress topk
    python examples/own_loop.py                                   # one process

Every rank runs this file. The first ranks become servers. They stay inside `psgd.connect` until the workers are done,
and then skip the block's body at its first use of `ps`.
"""

import argparse

import numpy as np
from mpi4py import MPI

import psgd

SAMPLES, FEATURES, BATCH, EPOCHS = 4096, 64, 32, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategy", nargs="?", default="sync", help="one of psgd's strategies (sync)")
    parser.add_argument("--compress", help="threshold, onebit or topk: compress the updates")
    parser.add_argument("--servers", type=int, help="number of server ranks (default: 1, or 0 on a single rank)")
    parser.add_argument("--lr", type=float, default=0.02)
    options = parser.parse_args()

    rng = np.random.default_rng(0)  # the same data on every rank; each worker reads only its own rows
    x = rng.normal(size=(SAMPLES, FEATURES))
    y = x @ rng.normal(size=FEATURES) + 0.1 * rng.normal(size=SAMPLES)

    comm = MPI.COMM_WORLD
    psgd.abort_on_exception()  # an error on one rank ends the job instead of leaving the others waiting
    weights = np.zeros(FEATURES)
    chosen = {"strategy": options.strategy, "servers": options.servers, "compress": options.compress}
    with psgd.connect(comm, weights, lr=options.lr, **chosen) as ps:
        mine = np.arange(ps.worker, SAMPLES, ps.workers)
        for epoch in range(EPOCHS):
            np.random.default_rng([epoch, ps.worker]).shuffle(mine)
            for start in range(0, len(mine), BATCH):
                rows = mine[start : start + BATCH]
                error = x[rows] @ ps.params - y[rows]
                ps.grads[:] = x[rows].T @ error / len(rows)
                ps.step(samples=len(rows), loss=float(error @ error) / len(rows))

    if ps.is_main:  # rank 0; every rank has the final weights
        best = np.linalg.lstsq(x, y, rcond=None)[0]
        distance = np.linalg.norm(weights - best) / np.linalg.norm(best)
        print(f"{options.strategy} on {comm.size} ranks: distance to the exact solution {distance:.4f}", flush=True)


if __name__ == "__main__":
    main()
