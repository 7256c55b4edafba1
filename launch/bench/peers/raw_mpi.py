"""The peer of pushpull that uses MPI only: Isend and Irecv of the same bytes, no header, no order, no checks.

It is the floor under a parameter server on this MPI. With `update` the server also makes one pass of SGD over
the parameters between the receive and the reply, as every parameter server must.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.update import sgd

TAG = 1
Vector = NDArray[np.float32]


def worker(
    comm: Any,
    *,
    servers: Sequence[int],
    cuts: Sequence[slice],
    grads: Vector,
    params: Vector,
    seconds: NDArray[Any],
) -> None:
    """Pushes `grads` and pulls `params` once for each entry of `seconds`, and writes there how long it took.

    Args:
        comm: an mpi4py communicator.
        servers: the servers' ranks.
        cuts: the part of the vector that each server holds.
        grads: float32, sent.
        params: float32, overwritten.
        seconds: float64, one entry for each repeat. Blocks until all are done.
    """
    requests: list[MPI.Request] = [MPI.REQUEST_NULL] * (2 * len(servers))
    ends = [(rank, grads[cut], params[cut]) for rank, cut in zip(servers, cuts, strict=True)]
    for repeat in range(seconds.size):
        start = perf_counter()
        for i, (rank, push, pull) in enumerate(ends):
            requests[2 * i] = comm.Irecv(pull, rank, TAG)
            requests[2 * i + 1] = comm.Isend(push, rank, TAG)
        MPI.Request.Waitall(requests)
        seconds[repeat] = perf_counter() - start


def server(
    comm: Any,
    *,
    workers: Sequence[int],
    params: Vector,
    pushes: Sequence[Vector],
    repeats: int,
    lr: float | None,
) -> None:
    """Answers `repeats` pushes of each worker with the parameters; updates them first unless `lr` is None.

    Args:
        comm: an mpi4py communicator.
        workers: the workers' ranks.
        params: this server's part, float32, updated in place.
        pushes: one receive buffer for each worker, as long as `params`.
        repeats: pushes of each worker. Blocks until all are answered.
        lr: learning rate, or None for no update.
    """
    left = [repeats] * len(workers)
    requests = [comm.Irecv(push, rank, TAG) for push, rank in zip(pushes, workers, strict=True)]
    for _ in range(repeats * len(workers)):
        if len(requests) == 1:
            requests[0].Wait()
            i = 0
        else:
            i = MPI.Request.Waitany(requests)
        if lr is not None:
            sgd(params, pushes[i], lr, 1.0, 0.0)
        reply = comm.Isend(params, workers[i], TAG)  # at once: the worker waits for it
        left[i] -= 1
        if left[i]:
            requests[i] = comm.Irecv(pushes[i], workers[i], TAG)
        reply.Wait()
