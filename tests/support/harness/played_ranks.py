"""Ranks that one process plays, one after the other: the oracle of what ranks that share a layer compute.

Each has a thread, but only one runs at a time, in rank order, until it comes to a collective or ends. A collective
looks at what all have handed in and sums it in rank order with NumPy: no MPI, no shared memory, nothing of psgd's.
"""

import threading

import numpy as np


class PlayedRank:
    """The part of a `Communicator` that cut layers use."""

    def __init__(self, rank, stage):
        self.rank, self.size, self._stage = rank, stage.size, stage

    def empty(self, shape, dtype):
        return np.zeros(shape, dtype)

    def Allreduce(self, sendbuf, recvbuf):
        """In place, as layers call it."""
        recvbuf[...] = self._total(recvbuf)

    def Allgather(self, sendbuf, recvbuf):
        recvbuf[...] = np.concatenate(self._stage.exchange(self.rank, sendbuf.copy()))

    def Allgatherv(self, sendbuf, recvbuf):
        vector, counts = recvbuf
        parts = self._stage.exchange(self.rank, sendbuf.copy())
        assert [part.size for part in parts] == counts
        vector[...] = np.concatenate(parts)

    def Reduce_scatter(self, sendbuf, recvbuf, counts):
        start = sum(counts[: self.rank])
        recvbuf[...] = self._total(sendbuf)[start : start + counts[self.rank]]

    def _total(self, summand):
        parts = self._stage.exchange(self.rank, summand.copy())
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total


class Stage:
    """Whose turn it is, and what was handed in."""

    def __init__(self, size):
        self.size, self.turns = size, [threading.Semaphore(0) for _ in range(size)]
        self.parts, self.failed = [None] * size, []

    def exchange(self, rank, part):
        """Hands a part in, lets the others go on to the same point, and returns all parts."""
        self.parts[rank] = part
        self._next(rank)
        if rank == 0:
            self.given = list(self.parts)
        return self.given

    def _next(self, rank):
        self.turns[(rank + 1) % self.size].release()
        self.turns[rank].acquire()
        if self.failed:
            raise self.failed[0]


def play(size, body):
    """Returns what `body(rank)` returns for each `PlayedRank`; all make the same collectives in the same order."""
    stage, results = Stage(size), [None] * size

    def run(rank):
        stage.turns[rank].acquire()
        try:
            results[rank] = body(PlayedRank(rank, stage))
        except BaseException as error:
            stage.failed.append(error)
        stage.turns[(rank + 1) % size].release()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    stage.turns[0].release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "played ranks wait for each other"
    if stage.failed:
        raise stage.failed[0]
    return results
