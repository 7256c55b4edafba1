"""For tests of algorithms over messages: a channel that is as unkind as the contract allows, inputs, and an oracle.

Sends are synchronous: none is complete before its receive is posted, as with large messages. What is received into and
scratch memory is poisoned first, and a message that was changed before its send was complete is an error.
"""

import os
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.arguments import operations

TAG = 77
POISON = 0xA5
GUARD = 9
CASES = (
    ("float32", "SUM"),
    ("float64", "mean"),
    ("int64", "PROD"),
    ("complex64", "SUM"),
    ("complex64", "PROD"),
    ("float32", "MIN"),
    ("int64", "MAX"),
)


class Channel:
    """Messages over a communicator, counted.

    Attributes:
        sent: messages that this rank sent, and `nbytes` of them.
        open: requests that are not known to be complete, `most_open` of them at once.
        log: "receive", "send", "done receive", "done send", in order.
        scratch_bytes: of all scratch memory.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.sent = self.nbytes = self.open = self.most_open = 0
        self.log: list[str] = []
        self._comm = comm
        self._scratch: dict[str, NDArray[Any]] = {}

    def send(self, to: int, data: NDArray[Any]) -> Callable[[], bool]:
        raw = self._raw(to, data)
        self.sent += 1
        self.nbytes += raw.size
        before = zlib.crc32(raw)

        def unchanged() -> None:
            assert zlib.crc32(raw) == before, "changed before its send was complete"

        return self._track(self._comm.Issend([raw, MPI.BYTE], to, TAG), "send", unchanged)

    def receive(self, source: int, into: NDArray[Any]) -> Callable[[], bool]:
        raw = self._raw(source, into)
        raw[:] = POISON
        status = MPI.Status()

        def whole() -> None:
            assert status.Get_count(MPI.BYTE) == raw.size, f"{status.Get_count(MPI.BYTE)} bytes for {raw.size}"

        return self._track(self._comm.Irecv([raw, MPI.BYTE], source, TAG), "receive", whole, status)

    def scratch(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        self._scratch[name] = np.full(size * np.dtype(dtype).itemsize, POISON, np.uint8).view(dtype)
        return self._scratch[name]

    @property
    def scratch_bytes(self) -> int:
        return sum(array.nbytes for array in self._scratch.values())

    def _raw(self, peer: int, array: NDArray[Any]) -> NDArray[np.uint8]:
        assert peer != self.rank
        assert 0 <= peer < self.size
        assert array.ndim == 1
        assert array.flags.c_contiguous
        return array.view(np.uint8)

    def _track(
        self, request: MPI.Request, what: str, check: Callable[[], None], status: MPI.Status | None = None
    ) -> Callable[[], bool]:
        self.log.append(what)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        done = False

        def test() -> bool:
            nonlocal done
            if not done and request.Test(status):
                done = True
                self.open -= 1
                self.log.append(f"done {what}")
                check()
            return done

        return test


def drive(
    channel: Channel, steps: Generator[Callable[[], bool], None, None], pause: Callable[[], float] | None = None
) -> None:
    """Runs an algorithm to its end, which must leave nothing open. `pause` gives seconds to sleep before each step."""
    for test in steps:
        if pause is not None:
            time.sleep(pause())
        while not test():
            os.sched_yield()
    assert channel.open == 0, f"{channel.open} requests are left"


def values(rank: int, n: int, dtype: str, op: str = "SUM") -> NDArray[Any]:
    """Numbers of which all differ, within a rank and between ranks, and whose reduction over 8 ranks is exact.

    Factors of a product are small, so they repeat, without a period that a wrong offset could hit.
    """
    mixed = (np.arange(n, dtype=np.int64) * (2 * rank + 3) + 10007 * rank + 1) % 524287
    other = (mixed * mixed + rank) % 524287
    if op == "PROD":
        mixed, other = 1 + other % 5 % (2 if dtype[0] == "c" else 5), other % 3
    return (mixed + 1j * other).astype(dtype) if dtype[0] == "c" else (mixed - 131071 * (op != "PROD")).astype(dtype)


def expected(size: int, n: int, dtype: str, op: str) -> NDArray[Any]:
    """What NumPy makes of `values` of all ranks, exactly."""
    wide = {"f": "float64", "c": "complex128", "i": "int64"}[dtype[0]]
    reducer = {"SUM": np.add, "mean": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}[op]
    total = reducer.reduce([values(rank, n, dtype, op).astype(wide) for rank in range(size)]).astype(dtype)
    return total / total.dtype.type(size) if op == "mean" else total


class Guarded:
    """An array with guards on both sides."""

    def __init__(self, n: int, dtype: DTypeLike) -> None:
        self._whole = np.full((n + 2 * GUARD) * np.dtype(dtype).itemsize, 0x5B, np.uint8).view(dtype)
        self.array: NDArray[Any] = self._whole[GUARD : GUARD + n]

    def intact(self) -> bool:
        outside = [self._whole[:GUARD], self._whole[self._whole.size - GUARD :]]
        return all((part.view(np.uint8) == 0x5B).all() for part in outside)


def same_bits(comm: MPI.Intracomm, array: NDArray[Any]) -> bool:
    """Whether all ranks hold the same bytes. Collective."""
    return len(set(comm.allgather(array.tobytes()))) == 1


def check_allreduce(comm: MPI.Intracomm, allreduce: Callable[..., Any], n: int, dtype: str, op: str) -> None:
    """Out of place and in place against the oracle. `allreduce(channel, send, recv, op)` makes the generator."""
    channel, operation = Channel(comm), operations.resolve(op if op == "mean" else getattr(MPI, op))
    mine, wanted = values(comm.rank, n, dtype, op), expected(comm.size, n, dtype, op)
    for in_place in (False, True):
        recv = Guarded(n, dtype)
        send = recv.array if in_place else mine.copy()
        send[:] = mine
        drive(channel, allreduce(channel, send, recv.array, operation))
        assert np.array_equal(recv.array, wanted), f"n={n} {dtype} {op} in_place={in_place}"
        assert recv.intact()
        assert in_place or np.array_equal(send, mine)
        assert same_bits(comm, recv.array)


def check_rounding(comm: MPI.Intracomm, allreduce: Callable[..., Any], n: int) -> None:
    """Random float32 against float64.

    Each of P - 1 additions errs by at most eps / 2 of a partial sum, so all by (P - 1) eps / 2 sum |x|; a bound twice
    as large covers the products of these errors. A second run must give the same bits.
    """
    all_ranks = np.random.default_rng(7).normal(size=(comm.size, n)).astype(np.float32)
    channel, runs = Channel(comm), []
    for _ in range(2):
        recv = np.empty(n, np.float32)
        drive(channel, allreduce(channel, all_ranks[comm.rank].copy(), recv, operations.resolve(MPI.SUM)))
        runs.append(recv)
    error = np.abs(runs[0] - all_ranks.astype(np.float64).sum(0))
    assert (error <= (comm.size - 1) * np.finfo(np.float32).eps * np.abs(all_ranks.astype(np.float64)).sum(0)).all()
    assert runs[0].tobytes() == runs[1].tobytes()
    assert same_bits(comm, runs[0])


def nans(rank: int, n: int) -> NDArray[np.float32]:
    """Quiet NaNs whose payloads tell rank and element."""
    return (np.arange(n, dtype=np.uint32) * 8 + np.uint32(0x7FC00001 + rank)).view(np.float32)


def sizes(size: int, *more: int) -> list[int]:
    """Lengths at which off-by-one errors show."""
    return sorted({0, 1, size - 1, size, size + 1, 7, 63, 64, 65, *more})


def cases(size: int, *more: int) -> Iterator[tuple[int, str, str]]:
    """Length, dtype, operation: every length with two of the CASES, every case with several lengths."""
    for i, n in enumerate(sizes(size, *more)):
        for dtype, op in (CASES[i % len(CASES)], CASES[(i + 3) % len(CASES)]):
            yield n, dtype, op
