"""EASGD's centre in memory that a node's workers share, and their exchanges with it, with a lock or without."""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels import elastic
from psgd.kernels.errors import UsageError
from psgd.worker.interface import Vector
from psgd.worker.serverless.counter_lines import BYTES, CounterLines
from psgd.worker.serverless.shared_parameters import share

_SPINS = 1000


class SharedCentre:
    """A worker's view of it. Creating is collective over all workers, blocks.

    Each worker has a cache line for its counters; the lock and the number of exchanges have one of their own, in front
    of the centre.

    Args:
        workers: all, on one node.
        node: those on this worker's node, ascending.
        like: a vector of the centre's size and dtype.
        locks: exchanges exclude each other.

    Attributes:
        params: the centre, zero at first.
        lines: the workers' counters.

    Raises:
        UsageError: the workers do not share memory; on all alike.
    """

    def __init__(self, workers: MPI.Intracomm, node: list[int], like: Vector, locks: bool) -> None:
        name = "async" if locks else "hogwild"
        if len(node) < workers.size:
            raise UsageError(
                f"easgd_order: {name} needs all workers on one node, whose memory they share, "
                f"got {workers.size} workers on several: use sync or round-robin"
            )
        first = BYTES * workers.size
        who = f"easgd_order {name} (sync and round-robin need no shared memory)"
        memory = share(workers, node, first + BYTES + like.nbytes, who)
        self.lines = CounterLines(memory[:first], workers.rank)
        self.params: Vector = memory[first + BYTES :].view(like.dtype)
        self._locks = locks
        self._words = address_of(memory) + first  # of the lock and the number of exchanges
        words = memory[first : first + BYTES].view(np.int64)
        self._lock: NDArray[np.int64] = words[elastic.LOCK :]
        self._exchanges: NDArray[np.int64] = words[elastic.EXCHANGES :]

    @property
    def exchanges(self) -> int:
        """Those that have ended so far. Set it before anybody exchanges only."""
        return int(self._exchanges[0])

    @exchanges.setter
    def exchanges(self, value: int) -> None:
        self._exchanges[0] = value

    def unlock(self) -> None:
        """Takes the lock from a worker that has died with it: what it was adding is there in part. Nobody exchanges."""
        self._lock[0] = 0

    def compile(self, params: Vector) -> None:
        """Compiles what steps with such parameters need. Changes nothing."""
        none, spare = params[:0], np.zeros(2, np.int64)
        elastic.exchange(none, none, none, 0.0, address_of(spare))
        elastic.exchange_locked(none, none, none, 0.0, address_of(spare), 0, 1)
        self.lines.compile()

    def exchange(self, displacement: Vector, params: Vector, rate: float, waiter: Waiter) -> int:
        """Moves the centre by `displacement = rate * (params - centre)`. Blocks for the lock, where there is one.

        Args:
            displacement: written.
            params: of this worker, only read.
            rate: what the difference is multiplied by.
            waiter: for the lock.

        Returns:
            Exchanges so far, with this one: with the lock, its place in their order.
        """
        if not self._locks:
            return 1 + elastic.exchange(displacement, params, self.params, rate, self._words)
        place = 0

        def attempt() -> bool:
            # For some spins only, so that the wait can look after the other workers between two attempts.
            nonlocal place
            arrays = displacement, params, self.params
            place = 1 + elastic.exchange_locked(*arrays, rate, self._words, self.lines.place, _SPINS)
            return place > 0

        waiter.soon(attempt)
        return place
