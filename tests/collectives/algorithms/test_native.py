import contextlib

import numpy as np
import pytest
from harness.channel import Guarded, cases, same_bits, sizes, values
from harness.channel import expected as oracle
from mpi4py import MPI

from psgd.collectives.algorithms import native
from psgd.collectives.arguments import operations
from psgd.collectives.mpi.split import split

MOVED = ("float32", "complex128", "int8", "bool", "float16")


@contextlib.contextmanager
def pieces(elements):
    """Calls are cut into pieces of so many elements."""
    before, native.CHUNK = native.CHUNK, elements
    try:
        yield
    finally:
        native.CHUNK = before


def run(comm, verb, *arguments):
    """Calls one of MPI's blocking verbs, after which no step is left to wait for."""
    assert list(getattr(native.Native(comm, True), verb)(*arguments)) == []


def resolve(op):
    return operations.resolve(op if op == "mean" else getattr(MPI, op))


def moved(rank, n, dtype):
    """Any bits, but for bool, which has two values."""
    bits = np.random.default_rng(rank).integers(0, 2 if dtype == "bool" else 256, n * np.dtype(dtype).itemsize)
    return bits.astype(np.uint8).view(dtype)


def parts_of(n, size):
    """Rank 0 has none, the last has most."""
    if size == 1:
        return [range(n)]
    *some, last = split(n // 3, size - 1)
    return [range(0), *some, range(last.start, n)]


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("chunk", [1000, 2**30])
def test_allreduce_and_reduce(comm, chunk):
    for i, (n, dtype, op) in enumerate(cases(comm.size, 999, 1000, 1001, 4097, 100_003)):
        mine, wanted, root = values(comm.rank, n, dtype, op), oracle(comm.size, n, dtype, op), i % comm.size
        for in_place in (False, True):
            recv = Guarded(n, dtype)
            recv.array[:] = mine
            send = recv.array if in_place else mine.copy()
            with pieces(chunk):
                run(comm, "allreduce", send, recv.array, resolve(op))
            assert np.array_equal(recv.array, wanted)
            assert recv.intact()
            assert in_place or np.array_equal(send, mine)
            recv.array[:] = mine
            send = recv.array if in_place and comm.rank == root else mine.copy()
            with pieces(chunk):
                run(comm, "reduce", send, recv.array if comm.rank == root else None, resolve(op), root)
            assert np.array_equal(recv.array, wanted if comm.rank == root else mine)
            assert recv.intact()


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("chunk", [1000, 2**30])
def test_reduce_scatter(comm, chunk):
    for n, dtype, op in cases(comm.size, 1001, 4097, 100_003):
        for parts in (split(n, comm.size), parts_of(n, comm.size)):
            counts, own = [len(part) for part in parts], slice(parts[comm.rank].start, parts[comm.rank].stop)
            mine, wanted = values(comm.rank, n, dtype, op), oracle(comm.size, n, dtype, op)[own]
            for place in ("out", "own", "start"):
                both, recv = Guarded(n, dtype), Guarded(counts[comm.rank], dtype)
                both.array[:] = mine
                out = {"out": recv.array, "own": both.array[own], "start": both.array[: counts[comm.rank]]}[place]
                with pieces(chunk):
                    run(comm, "reduce_scatter", both.array, out, counts, resolve(op))
                assert np.array_equal(out, wanted)
                assert recv.intact()
                assert both.intact()
                assert place != "out" or np.array_equal(both.array, mine)


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("chunk", [1000, 2**30])
def test_allgather(comm, chunk):
    size, rank = comm.size, comm.rank
    for dtype in MOVED:
        for n in (0, 1, 63, 200, 201, 1000, 4097):
            wanted = np.concatenate([moved(r, n, dtype) for r in range(size)])
            for in_place in (False, True):
                recv, mine = Guarded(n * size, dtype), moved(rank, n, dtype)
                own = recv.array[rank * n : (rank + 1) * n]
                own[:] = mine if in_place else 0
                with pieces(chunk):
                    run(comm, "allgather", own if in_place else mine, recv.array)
                assert recv.array.tobytes() == wanted.tobytes()
                assert recv.intact()


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("chunk", [1000, 2**30])
def test_allgatherv_leaves_gaps_alone(comm, chunk):
    size, rank = comm.size, comm.rank
    for dtype in MOVED:
        for n in (0, 1, 63, 4097):
            counts = [n * (r % 3) + r for r in range(size)]
            displs = [sum(counts[r + 1 :]) + 2 * (size - r) for r in range(size)]  # backward, with gaps of 2
            total = sum(counts) + 2 * size + 2
            recv, before = Guarded(total, dtype), Guarded(total, dtype).array
            wanted = before.copy()
            for r in range(size):
                wanted[displs[r] : displs[r] + counts[r]] = moved(r, counts[r], dtype)
            for in_place in (False, True):
                recv.array[:] = before
                mine, own = moved(rank, counts[rank], dtype), recv.array[displs[rank] : displs[rank] + counts[rank]]
                own[:] = mine if in_place else own
                with pieces(chunk):
                    run(comm, "allgatherv", own if in_place else mine, recv.array, counts, displs)
                assert recv.array.tobytes() == wanted.tobytes()
                assert recv.intact()


@pytest.mark.ranks(1, 2, 5)
@pytest.mark.parametrize("chunk", [1000, 2**30])
def test_bcast(comm, chunk):
    for root in range(comm.size):
        for dtype in MOVED:
            for n in sizes(comm.size, 1000, 1001, 4097):
                data = Guarded(n, dtype)
                data.array[:] = moved(root, n, dtype) if comm.rank == root else 0
                if comm.rank == root:
                    data.array.flags.writeable = False  # the root's is read only
                with pieces(chunk):
                    run(comm, "bcast", data.array, root)
                assert data.array.tobytes() == moved(root, n, dtype).tobytes()
                assert data.intact()


class Counting:
    """A communicator that notes how many elements each call moves."""

    def __init__(self, comm):
        self.comm, self.rank, self.size, self.calls = comm, comm.rank, comm.size, []

    def __getattr__(self, name):
        def call(*arguments):
            arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
            self.calls.append((name, max((array.size for array in arrays), default=0)))
            return getattr(self.comm, name)(*arguments)

        return call


@pytest.mark.ranks(3)
def test_no_call_is_larger_than_a_piece(comm):
    counting, n = Counting(comm), 4097
    mine, recv, total = values(comm.rank, n, "float32"), np.empty(n, np.float32), resolve("SUM")
    parts = parts_of(n, 3)
    counts, starts, own = [len(p) for p in parts], [p.start for p in parts], parts[comm.rank]
    with pieces(1000):
        run(counting, "allreduce", mine, recv, total)
        assert counting.calls == [("Allreduce", 1000)] * 4 + [("Allreduce", 97)]
        run(counting, "reduce", mine, recv if comm.rank == 2 else None, total, 2)
        run(counting, "bcast", recv, 1)
        run(counting, "reduce_scatter", mine, np.empty(len(own), np.float32), counts, total)
        run(counting, "allgatherv", mine[own.start : own.stop], recv, counts, starts)
        run(counting, "allgather", mine[:400].copy(), recv[:1200])
        run(counting, "allreduce", mine[:0], recv[:0], total)
    assert max(size for _, size in counting.calls) == 1000
    assert len(set(comm.allgather(str([name for name, _ in counting.calls])))) == 1  # the same calls on all ranks
    assert counting.calls[-1] == ("Allreduce", 0)


@pytest.mark.ranks(2, 3)
def test_mean_divides_once(comm):
    recv = np.empty(10)
    run(comm, "allreduce", np.full(10, comm.rank + 0.5), recv, resolve("mean"))
    assert (recv == comm.size / 2).all()
    assert same_bits(comm, recv)
