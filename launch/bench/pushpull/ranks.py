"""What each rank of `psgd bench pushpull` does: verify, then time ours and the peers in turn.

For each size the methods alternate in rounds, so that a disturbance of the machine meets all of them.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import psgd
from psgd.collectives.mpi.split import split
from psgd.kernels.errors import Error
from psgd.launch.bench.peers import raw_mpi
from psgd.launch.bench.peers.cores import quiet_barrier
from psgd.launch.bench.peers.torch_rpc import RpcPeer
from psgd.launch.bench.pushpull import replicated
from psgd.launch.bench.stats import median

LR = 0.25
ROUNDS = 5
WARM = 8  # large messages take so many until pages and caches have settled
PUSHES = 5
OURS, RAW, RAW_UPDATE, TWICE = range(4)
Vector = NDArray[np.float32]


def default_repeats(nbytes: int) -> int:
    """How often a size is timed unless given: fewer times where each takes long, 20 to 2000."""
    return min(2000, max(20, 2**30 // nbytes))


def measure(
    comm: MPI.Intracomm,
    sizes: Sequence[int],
    servers: int,
    repeats: int | None,
    peer: RpcPeer | None,
    replicas: int = 0,
) -> Iterator[dict[str, Any]]:
    """Verifies and times each size in turn; collective, so all ranks must take every row.

    Args:
        comm: all ranks; the first `servers` are servers, as in `psgd.connect`.
        sizes: bytes of the float32 vector.
        servers: number of servers.
        repeats: timed push + pull steps of each method and size; None chooses by size.
        peer: PyTorch's RPC, on rank 0 or nowhere.
        replicas: 1 also times servers that hold each shard twice, in the same rounds.

    Yields:
        One row for each size, with the medians of the slowest rank (in seconds). The same on all ranks, but
        `torch_rpc_seconds` is known to rank 0 only.

    Raises:
        Error: the parameters that came back are not the closed form (on all ranks alike).
    """
    if peer is not None:
        peer.measure(64, 1)  # waits for its start, which would disturb the first timings
    quiet_barrier(comm)
    for nbytes in sizes:
        _verify(comm, nbytes // 4, servers)
        count = -(-(repeats or default_repeats(nbytes)) // ROUNDS)
        seconds = np.zeros((3 + replicas, ROUNDS, count))
        rpc: list[float] | None = []
        raw = _RawPeer(comm, nbytes // 4, servers, WARM + count)
        for turn in range(ROUNDS):
            seconds[OURS, turn] = _time_ours(comm, nbytes // 4, servers, WARM + count)[WARM:]
            seconds[RAW, turn] = raw.run(None)[WARM:]
            seconds[RAW_UPDATE, turn] = raw.run(LR)[WARM:]
            if replicas:
                seconds[TWICE, turn] = _time_ours(comm, nbytes // 4, servers, WARM + count, replicas)[WARM:]
            quiet_barrier(comm)
            more = peer.measure(nbytes, count) if peer is not None and rpc is not None else None
            rpc = None if more is None or rpc is None else rpc + more
            quiet_barrier(comm)
        medians = np.median(seconds.reshape(3 + replicas, -1), axis=1)
        comm.Allreduce(MPI.IN_PLACE, medians, MPI.MAX)
        vendor, version = MPI.get_vendor()
        yield {
            "nbytes": nbytes,
            "servers": servers,
            "workers": comm.size - servers,
            "seconds": float(medians[OURS]),
            "gbs": 2 * nbytes / float(medians[OURS]) / 1e9,
            "raw_mpi_seconds": float(medians[RAW]),
            "raw_mpi_update_seconds": float(medians[RAW_UPDATE]),
            "torch_rpc_seconds": median(rpc) if rpc else None,
            "repeats": ROUNDS * count,
            "verified": True,
            "mpi": f"{vendor} {'.'.join(map(str, version))}",
        } | ({"replicated_seconds": float(medians[TWICE])} if replicas else {})


class _RawPeer:
    """The buffers of the raw MPI peer, made once for all rounds."""

    def __init__(self, comm: MPI.Intracomm, n: int, servers: int, repeats: int) -> None:
        cuts = split(n, servers)
        self._comm = comm
        self._seconds = np.zeros(repeats)
        self._ranks = range(servers)
        self._workers = range(servers, comm.size)
        self._is_server = comm.rank < servers
        self._cuts = [slice(cut.start, cut.stop) for cut in cuts]
        size = len(cuts[comm.rank]) if self._is_server else n
        # Values, not np.zeros: untouched zeros are one page of memory, which no real vector is.
        self._params = _start_values(size)
        self._pushes = [_gradient(size, 0, 1) for _ in (self._workers if self._is_server else range(1))]

    def run(self, lr: float | None) -> NDArray[np.float64]:
        """Seconds of each step on a worker, zeros on a server. The server updates unless `lr` is None."""
        self._comm.Barrier()
        if self._is_server:
            raw_mpi.server(
                self._comm,
                workers=self._workers,
                params=self._params,
                pushes=self._pushes,
                repeats=self._seconds.size,
                lr=lr,
            )
        else:
            raw_mpi.worker(
                self._comm,
                servers=self._ranks,
                cuts=self._cuts,
                grads=self._pushes[0],
                params=self._params,
                seconds=self._seconds,
            )
        return self._seconds


def _start_values(n: int) -> Vector:
    values: Vector = (np.arange(n, dtype=np.int64) % 31).astype(np.float32)
    values /= 4
    return values


def _gradient(n: int, worker: int, workers: int) -> Vector:
    """Dyadic numbers, exact in float32; each worker's are zero outside its own entries."""
    index = np.arange(n, dtype=np.int64)
    values: Vector = (index % 17 - 8).astype(np.float32)
    values /= 8
    values[index % workers != worker] = 0
    return values


def _verify(comm: MPI.Intracomm, n: int, servers: int) -> None:
    """Checks that after k pushes of g a worker's own entries are exactly w - k lr g, and the others' untorn.

    Another worker has been counted j times, 0 <= j <= k, with the same j at all of its entries.
    """
    start, right = _start_values(n), True
    with psgd.connect(comm, start.copy(), strategy="async", servers=servers, placement="dedicated", lr=LR) as ps:
        if comm.rank >= servers:
            ps.grads[:] = _gradient(n, ps.worker, ps.workers)
            for _ in range(PUSHES):
                ps.step()
            for other in range(ps.workers):
                step = np.float32(LR) * _gradient(n, other, ps.workers)
                mine = step != 0
                counts = [PUSHES] if other == ps.worker else range(PUSHES + 1)
                right &= any(np.array_equal(ps.params[mine], (start - j * step)[mine]) for j in counts)
    verdict = np.array([right], np.uint8)
    comm.Allreduce(MPI.IN_PLACE, verdict, MPI.MIN)
    if not verdict[0]:
        raise Error(f"pushpull: after {PUSHES} pushes of a known gradient of {4 * n} bytes the parameters are wrong")


def pause(comm: MPI.Intracomm, n: int, servers: int) -> float:
    """How long a worker waits when a server is killed. Collective; nothing is possible on `comm` afterwards.

    Raises:
        Error: a push that was answered was lost.
    """
    return replicated.pause(comm, np.full(n, 4.0, np.float32), servers, 2**-10, steps=replicated.KILLED_AFTER + 40)


def _time_ours(comm: MPI.Intracomm, n: int, servers: int, repeats: int, replicas: int = 0) -> NDArray[np.float64]:
    """Seconds of each step on a worker, zeros on a server."""
    seconds = np.zeros(repeats)
    clock = time.perf_counter
    with replicated.connect(comm, _start_values(n), servers, LR, replicas) as ps:
        if comm.rank >= servers:
            ps.grads[:] = _gradient(n, ps.worker, ps.workers)
            for repeat in range(repeats):
                start = clock()
                ps.step()
                seconds[repeat] = clock() - start
    return seconds
