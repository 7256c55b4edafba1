"""More elements than MPI's 32-bit counts hold, and the same cuts made small, through every verb."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from harness.oracle import MESSAGES, VERBS, check, communicator
from mpi4py import MPI

from psgd.collectives.algorithms import channel, native

N = 2**31 + 77
NEEDED = 9 * 2**30


@contextlib.contextmanager
def cut_at(n):
    before = channel.LIMIT, native.CHUNK
    channel.LIMIT = native.CHUNK = n
    try:
        yield
    finally:
        channel.LIMIT, native.CHUNK = before


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_messages_and_mpis_calls_in_pieces(comm, verb):
    with cut_at(1000):
        for shared in ("1", "0"):
            with communicator(comm, PSGD_SHARED=shared) as c:
                for algorithm in MESSAGES[verb]:
                    for n, dtype in (
                        (0, "float32"),
                        (999, "int64"),
                        (1000, "float64"),
                        (1001, "float32"),
                        (4097, "int64"),
                    ):
                        check(c, verb, n, dtype, algorithm=algorithm)
                        assert c.last[0] == algorithm


@pytest.mark.ranks(2)
def test_sixteen_bits_and_bools_in_pieces(comm):
    with cut_at(1000), communicator(comm, PSGD_SHARED="0") as c:
        mine, recv = np.arange(2001, dtype=np.float16) % 50 + comm.rank, np.zeros(2001, np.float16)
        truth = np.arange(2001) % 3 == comm.rank
        for algorithm in MESSAGES["Allreduce"]:
            c.Allreduce(mine, recv, algorithm=algorithm)
            assert np.array_equal(recv, 2 * (np.arange(2001) % 50) + 1)
        for algorithm in MESSAGES["Allgather"]:
            everyone = np.zeros(4002, bool)
            c.Allgather(truth, everyone, algorithm=algorithm)
            assert np.array_equal(everyone, np.concatenate([np.arange(2001) % 3 == r for r in range(2)]))


def available():
    """Bytes that may be had without swapping, also inside a container's limit."""
    with open("/proc/meminfo") as file:
        free = next(1024 * int(text.split()[1]) for text in file if text.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return free


def skip_without_memory(comm):
    free = comm.bcast(available())
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED / 2**30:.0f} GiB of free memory, there are {free / 2**30:.1f}")


def pattern(rank):
    """Bytes whose period (a prime) fits no chunk; written piece by piece, without a second large array."""
    whole = np.empty(N, np.int8)
    piece = ((np.arange(251 * 65536) * (2 * rank + 3) + rank) % 251 % 50 - 20).astype(np.int8)
    for start in range(0, N, piece.size):
        part = whole[start : start + piece.size]
        part[:] = piece[: part.size]
    return whole, piece


def assert_periodic(whole, piece):
    for start in range(0, N, piece.size):
        part = whole[start : start + piece.size]
        assert np.array_equal(part, piece[: part.size]), f"from element {start}"


@pytest.mark.slow
@pytest.mark.ranks(2, timeout=100)
@pytest.mark.parametrize("way", ["shared", "messages", "native"])
def test_more_than_two_to_the_31_elements_in_place(comm, way):
    skip_without_memory(comm)
    with communicator(comm, PSGD_SHARED="1" if way == "shared" else "0") as c:
        mine, piece = pattern(comm.rank)
        op = MPI.MAX if way == "native" else MPI.SUM  # sums of bytes are each MPI's own affair
        both = [piece, np.empty_like(piece)]
        comm.Sendrecv(piece, 1 - comm.rank, 0, both[1], 1 - comm.rank, 0)
        c.Allreduce(MPI.IN_PLACE, mine, op, algorithm="native" if way == "native" else None)
        assert_periodic(mine, np.maximum(*both) if way == "native" else both[0] + both[1])
