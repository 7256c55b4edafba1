"""Latency and bandwidth between ranks, two at a time, and clocks.

Every rank is in one pair at most at any time: a tournament. So no link carries two measurements at once, and P ranks
need P - 1 rounds.
"""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.wait import Waiter

SMALL_REPEATS, LARGE_REPEATS, LARGE_BYTES = 20, 2, 1 << 20
TAG = 11
MOST = 16  # ranks of a tournament


class Pair(NamedTuple):
    """What was measured between two ranks: the shortest one-way time of 8 bytes, and of 1 MiB as a rate."""

    a: int
    b: int
    latency_s: float
    bytes_per_s: float


def rounds(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """A tournament: each pair once, each member at most once a round; the circle method."""
    ring = list(members) if len(members) % 2 == 0 else [*members, -1]
    half, found = len(ring) // 2, []
    for _ in range(len(ring) - 1):
        facing = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in facing if -1 not in pair])
        ring[1:] = [ring[-1], *ring[1:-1]]
    return found


def sample(ranks: Sequence[int], most: int = MOST) -> list[int]:
    """At most `most` of the ranks, evenly spread, the first among them."""
    count = min(len(ranks), most)
    return [ranks[k * len(ranks) // count] for k in range(count)]


class Meter:
    """Measures between this rank and others; all waits let other ranks have the core."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._waiter = Waiter.for_node(comm)
        self._small = np.zeros(1, np.float64)
        self._large = np.zeros(LARGE_BYTES, np.uint8)

    def tournament(self, members: Sequence[int]) -> list[Pair]:
        """Plays this rank's games. Called by all members; blocks.

        Returns:
            The pairs in which this rank is the lower one.
        """
        rank, found = self._comm.Get_rank(), []
        for games in rounds(members) if rank in members else []:
            for a, b in games:
                if rank in (a, b):
                    other = b if rank == a else a
                    latency_s = self._one_way(other, self._small, SMALL_REPEATS, first=rank == a)
                    large_s = self._one_way(other, self._large, LARGE_REPEATS, first=rank == a)
                    if rank == a:
                        found.append(Pair(a, b, latency_s, LARGE_BYTES / large_s))
        return found

    def clock_offset(self, other: int, asks: bool) -> float:
        """Seconds that the other's clock is ahead, where this rank asks; the other only answers. Blocks.

        The answer with the shortest round trip counts: half of that trip is the error.
        """
        best, offset = float("inf"), 0.0
        for _ in range(SMALL_REPEATS):
            if asks:
                start = time.time()
                self._send(other, self._small)
                self._receive(other, self._small)
                end = time.time()
                if end - start < best:
                    best, offset = end - start, float(self._small[0]) - (start + end) / 2
            else:
                self._receive(other, self._small)
                self._small[0] = time.time()
                self._send(other, self._small)
        return offset

    def _one_way(self, other: int, buffer: np.ndarray, repeats: int, first: bool) -> float:  # type: ignore[type-arg]
        best = float("inf")
        for turn in range(repeats + 1):  # the first one brings both together, and counts for nothing
            start = time.perf_counter()
            if first:
                self._send(other, buffer)
            self._receive(other, buffer)
            if not first:
                self._send(other, buffer)
            if turn:
                best = min(best, (time.perf_counter() - start) / 2)
        return best

    def _send(self, other: int, buffer: np.ndarray) -> None:  # type: ignore[type-arg]
        self._waiter.flowing(self._comm.Isend(buffer, other, TAG).Test)

    def _receive(self, other: int, buffer: np.ndarray) -> None:  # type: ignore[type-arg]
        self._waiter.soon(self._comm.Irecv(buffer, other, TAG).Test)


def slow(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs much slower than the middle one: a third of its rate, or 5 times and 50 us its latency.

    With fewer than three pairs there is nothing to compare with.
    """
    if len(pairs) < 3:
        return []
    latency_s = statistics.median(pair.latency_s for pair in pairs)
    rate = statistics.median(pair.bytes_per_s for pair in pairs)
    return [p for p in pairs if p.bytes_per_s < rate / 3 or p.latency_s > max(5 * latency_s, latency_s + 50e-6)]


def culprit(found: Sequence[Pair], pairs: Sequence[Pair], hosts: Sequence[str]) -> str | None:
    """The host that all slow pairs have in common, if most of its pairs are slow; else None."""
    if len(found) < 2:
        return None
    common = set.intersection(*({hosts[pair.a], hosts[pair.b]} for pair in found))
    for host in sorted(common):
        if 2 * len(found) > sum(host in (hosts[pair.a], hosts[pair.b]) for pair in pairs):
            return host
    return None
