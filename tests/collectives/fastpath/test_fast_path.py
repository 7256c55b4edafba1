"""The short way: the same results and errors as the long one, also where ranks go different ways."""

import contextlib
import json

import numpy as np
import pytest
from harness.channel import Guarded, expected, sizes, values
from harness.oracle import check, communicator, operation, same_error
from mpi4py import MPI

from psgd import collectives
from psgd.collectives.arguments.view import KINDS
from psgd.collectives.dispatch.contract import describe
from psgd.kernels.errors import ContractError, UsageError

VERBS = ("Allreduce", "Reduce_scatter_block", "Allgather", "Bcast")
OPS = ("SUM", "PROD", "MIN", "MAX", "mean")
NUMPY = (np.add, np.multiply, np.minimum, np.maximum)


@contextlib.contextmanager
def ways(c, long=None):
    """Yields what each call from now on took, True for the short way. With `long`, this rank never takes it."""
    taken = []

    def watched(way):
        def call(*arguments):
            taken.append(not long and way(*arguments))
            return taken[-1]

        return call

    quick = dict(vars(c._fast))
    vars(c._fast).update({name: watched(way) for name, way in quick.items()})
    yield taken
    vars(c._fast).update(quick)


def takes(verb, dtype, op):
    """Whether NumPy arrays of a dtype go the short way."""
    if verb not in {"Allreduce", "Reduce_scatter_block"}:
        return True
    return "float" in dtype if op == "mean" else not (dtype[0] == "c" and op in {"MIN", "MAX"})


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("verb", VERBS)
def test_every_dtype_and_size_in_and_out_of_place(comm, verb):
    dtypes = sorted(set(KINDS.values()) - {"bool", "float16"})
    if verb in VERBS[:2]:
        dtypes = [dtype for dtype in dtypes if dtype[0] != "u"]  # the oracle has none
    with communicator(comm) as c, ways(c) as taken:
        for i, dtype in enumerate(dtypes):
            for k, n in enumerate(sizes(comm.size, 63, 1023, 4097)):
                op = [each for each in OPS if takes(verb, dtype, each)][(i + k) % (5 if "float" in dtype else 2)]
                check(c, verb, n, dtype, op)
        for n in (20_000, 100_003):
            check(c, verb, n, "float32")
        assert all(taken) and len(taken) >= 12 * len(dtypes) // 2


@pytest.mark.ranks(2, 3)
def test_every_operation(comm):
    with communicator(comm) as c, ways(c) as taken:
        for verb in VERBS[:2]:
            for op in OPS:
                for dtype in ("float32", "int64", "complex128"):
                    if takes(verb, dtype, op):
                        check(c, verb, 65, dtype, op)
        for dtype in ("uint8", "uint16", "uint32", "uint64"):  # wrap around
            for op in NUMPY:
                everyone = [np.arange(250, 7, -3).astype(dtype) + rank for rank in range(comm.size)]
                given = Guarded(len(everyone[0]), dtype)
                c.Allreduce(everyone[comm.rank], given.array, getattr(MPI, OPS[NUMPY.index(op)]))
                assert np.array_equal(given.array, op.reduce(everyone, dtype=dtype)) and given.intact()
        assert all(taken)
        given = Guarded(3, "float32")
        c.Allreduce(values(comm.rank, 3, "float32"), given.array, collectives.MEAN)
        assert np.array_equal(given.array, expected(comm.size, 3, "float32", "mean")) and taken[-1]


@pytest.mark.ranks(2, 3)
def test_bool_and_float16_are_moved_and_shapes_do_not_matter(comm):
    with communicator(comm) as c, ways(c) as taken:
        for dtype in ("bool", "float16"):
            got = np.zeros(3 * comm.size, dtype)
            mine = np.arange(3) % 2 == comm.rank % 2
            c.Allgather(mine.astype(dtype), got)
            assert np.array_equal(got.reshape(-1, 3), [np.arange(3) % 2 == r % 2 for r in range(comm.size)])
            buf = np.full((2, 3), comm.rank == 1, dtype)
            c.Bcast(buf, 1)
            assert buf.all()
        assert all(taken)
        for shape in ((), (1,), (1, 1, 1, 1, 1, 1)):
            got = np.zeros(shape)
            c.Allreduce(np.full(shape, comm.rank + 1.0), got)
            assert got.sum() == comm.size * (comm.size + 1) / 2
        assert all(taken)


@pytest.mark.ranks(2, 3)
def test_all_registered_memory(comm):
    with communicator(comm) as c, ways(c) as taken:
        memory = c.empty((2, 4100 * comm.size), "float64")
        taken.clear()
        for n in (5, 4100):
            whole, mine = values(comm.rank, n * comm.size, "float64"), values(comm.rank, n, "float64")
            out, send = memory[0, : n * comm.size], memory[1, : n * comm.size]
            for in_place in (False, True):
                (out if in_place else send)[:] = whole
                c.Allreduce(MPI.IN_PLACE if in_place else send, out)
                assert np.array_equal(out, expected(comm.size, n * comm.size, "float64", "SUM"))
                assert n == 5 or c.last == ("direct", "registered")
            send[:] = whole
            c.Reduce_scatter_block(send, out[:n])
            own = slice(comm.rank * n, (comm.rank + 1) * n)
            assert np.array_equal(out[:n], expected(comm.size, n * comm.size, "float64", "SUM")[own])
            send[:n] = mine
            c.Allgather(send[:n], out)
            assert np.array_equal(out.reshape(-1, n), [values(r, n, "float64") for r in range(comm.size)])
            send[:n] = mine
            c.Bcast(send[:n], 1)
            assert np.array_equal(send[:n], values(1, n, "float64"))
        assert all(taken)


LONG = {
    "strided": lambda a: np.repeat(a, 2)[::2],
    "rows": lambda a: a.reshape(1, -1),
    "column": lambda a: np.asfortranarray(a.reshape(-1, 1)),
    "list": lambda a: [a, MPI.DOUBLE],
    "bytes": lambda a: [memoryview(a).cast("B"), MPI.DOUBLE],
}


def flat(spec):
    return np.asarray(spec[0] if isinstance(spec, list) else spec).view("float64").reshape(-1)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("long", ["strided", "rows", "list", "bytes"])
def test_ranks_on_different_ways_meet(comm, long):
    """One rank, each in turn, passes what means the same but is not plain."""
    with communicator(comm) as c, ways(c) as taken:
        for odd in range(comm.size):
            dress = LONG[long] if comm.rank == odd else lambda a: a
            for n in (1, 7, 4097, 40_000):
                block, whole = values(comm.rank, n, "float64"), values(comm.rank, n * comm.size, "float64")
                total = expected(comm.size, n * comm.size, "float64", "SUM")
                everyone = np.concatenate([values(r, n, "float64") for r in range(comm.size)])
                got = dress(np.zeros(n * comm.size))
                c.Allreduce(dress(whole), got)
                assert np.array_equal(flat(got) if long != "strided" else got, total)
                got = dress(np.zeros(n))
                c.Reduce_scatter_block(whole, got)
                assert np.array_equal(
                    flat(got) if long != "strided" else got, total[comm.rank * n : (comm.rank + 1) * n]
                )
                got = dress(np.zeros(n * comm.size))
                c.Allgather(dress(block), got)
                assert np.array_equal(flat(got) if long != "strided" else got, everyone)
                got = dress(block)
                c.Bcast(got, comm.size - 1)
                assert np.array_equal(flat(got) if long != "strided" else got, values(comm.size - 1, n, "float64"))
        assert any(taken) and (long == "rows" or not all(taken))


@pytest.mark.ranks(2, 3)
def test_every_case_with_one_rank_on_the_long_way(comm):
    with communicator(comm) as c:
        for odd in range(comm.size):
            with ways(c, long=comm.rank == odd) as taken:
                for verb in VERBS:
                    for n in sizes(comm.size, 1023, 9000, 100_003):
                        check(c, verb, n, "float32")
                c.Barrier()
                assert all(taken) == (comm.rank != odd) and any(taken) == (comm.rank != odd)


@pytest.mark.ranks(2, 3)
def test_both_ways_publish_the_same_line(comm):
    """What ranks compare, and what errors tell of a call."""
    n, a, b = 6, np.ones((6 * comm.size, 1)), np.zeros((6 * comm.size, 1))
    calls = [
        lambda c: c.Allreduce(a, b, MPI.MAX),
        lambda c: c.Allreduce(MPI.IN_PLACE, b.reshape(2, 3, -1, 1, 1, 1), "mean"),
        lambda c: c.Reduce_scatter_block(a, b[:n]),
        lambda c: c.Reduce_scatter_block(MPI.IN_PLACE, b),
        lambda c: c.Allgather(a[:n], b),
        lambda c: c.Bcast(b, comm.size - 1),
        lambda c: c.Barrier(),
    ]
    with communicator(comm) as c:
        for call in calls:
            lines = []
            for long in (False, True):
                with ways(c, long=long) as taken:
                    call(c)
                    assert taken == [not long]
                lines.append([each.tolist()[:5] for each in c._engine.shared.descriptors()[0]])
                lines.append(describe(c._engine.descriptor))
            assert lines[:2] == lines[2:]


MISMATCHES = {
    "count": lambda c, x: c.Allreduce(np.ones(9 + x), np.ones(9 + x)),
    "dtype": lambda c, x: c.Allreduce(np.ones(9, "f4" if x else "i4"), np.ones(9, "f4" if x else "i4")),
    "op": lambda c, x: c.Allreduce(np.ones(9), np.ones(9), MPI.MIN if x else MPI.PROD),
    "mean": lambda c, x: c.Allreduce(np.ones(9), np.ones(9), "mean" if x else MPI.SUM),
    "shape": lambda c, x: c.Bcast(np.ones((2, 8) if x else (8, 2))),
    "root": lambda c, x: c.Bcast(np.ones(9), int(x)),
    "count of Bcast": lambda c, x: c.Bcast(np.ones(9 + x)),
    "dtype of Bcast": lambda c, x: c.Bcast(np.ones(9, "f4" if x else "i4")),
    "long Bcast": lambda c, x: c.Bcast(np.ones(9 + 100_000 * x)),
    "count of Allgather": lambda c, x: c.Allgather(np.ones(4 + x), np.ones((4 + x) * c.size)),
    "long Allgather": lambda c, x: c.Allgather(MPI.IN_PLACE, np.ones((4 + 100_000 * x) * c.size)),
    "count of Reduce_scatter_block": lambda c, x: c.Reduce_scatter_block(np.ones((4 + x) * c.size), np.ones(4 + x)),
    "verb": lambda c, x: c.Allgather(np.ones(4), np.ones(4 * c.size)) if x else c.Bcast(np.ones(4)),
    "verb of a reduction": lambda c, x: (
        c.Reduce_scatter_block(np.ones(4 * c.size), np.ones(4))
        if x
        else c.Allreduce(np.ones(4 * c.size), np.ones(4 * c.size))
    ),
    "Barrier": lambda c, x: c.Barrier() if x else c.Allreduce(np.ones(9), np.ones(9)),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("long", [False, True])
def test_a_mismatch_is_one_error_on_all_ranks_and_the_communicator_goes_on(comm, long):
    last = comm.rank == comm.size - 1
    others = "rank 0" if comm.size == 2 else f"ranks 0-{comm.size - 2}"
    with communicator(comm) as c, ways(c, long=long and last) as taken:
        for dtype in ("float32", "float64", "int32"):
            check(c, "Allreduce", 9, dtype)  # compiled now, so that the time of the errors is theirs
        for call in MISMATCHES.values():
            same_error(comm, lambda call=call: call(c, last), ContractError, others, f"rank {comm.size - 1}")
            check(c, "Allreduce", 4097, "float32")
            check(c, "Bcast", 64, "int64")
        assert all(taken) or (long and last)


def read_only(n):
    array = np.ones(n)
    array.flags.writeable = False
    return array


def wrong(c):
    """Calls that cannot be right, with a word of their error."""
    size, memory = c.size, np.ones(64)
    return [
        (lambda: c.Allreduce(np.ones(4), np.ones(5)), "elements"),
        (lambda: c.Allreduce(np.ones(4), np.ones(4, "f4")), "one dtype"),
        (lambda: c.Allreduce(memory[:9], memory[1:10]), "overlapping"),
        (lambda: c.Allreduce(np.ones(4), read_only(4)), "writable"),
        (lambda: c.Allreduce(np.ones(4), np.ones(4), "median"), "op"),
        (lambda: c.Allreduce(np.ones(4, int), np.ones(4, int), "mean"), "mean is not defined"),
        (lambda: c.Allreduce(np.ones(4, complex), np.ones(4, complex), MPI.MAX), "MAX is not defined"),
        (lambda: c.Allreduce(np.ones(4, bool), np.ones(4, bool)), "SUM is not defined"),
        (lambda: c.Reduce_scatter_block(np.ones(2 * size + 1), np.ones(2)), "elements"),
        (lambda: c.Reduce_scatter_block(memory[: 4 * size], memory[:4]), "overlapping"),
        (lambda: c.Reduce_scatter_block(MPI.IN_PLACE, np.ones(size + 1)), "multiple"),
        (lambda: c.Reduce_scatter_block(np.ones(size), read_only(1)), "writable"),
        (lambda: c.Allgather(np.ones(2), np.ones(2 * size + 1)), "multiple"),
        (lambda: c.Allgather(np.ones(3), np.ones(2 * size)), "elements"),
        (lambda: c.Allgather(np.ones(2, "f4"), np.ones(2 * size)), "one dtype"),
        (lambda: c.Allgather(memory[1:5], memory[: 4 * size]), "overlapping"),
        (lambda: c.Allgather(np.ones(2), read_only(2 * size)), "writable"),
        (lambda: c.Bcast(np.ones(3), size), "root"),
        (lambda: c.Bcast(np.ones(3), -1), "root"),
        (lambda: c.Bcast(np.ones(3, object)), "dtype object"),
        (lambda: c.Bcast(None), "buf"),
    ]


@pytest.mark.ranks(2, 3)
def test_wrong_arguments_are_errors_of_the_long_way_on_all_ranks(comm):
    with communicator(comm) as c:
        for i in range(len(wrong(c))):
            call, word = wrong(c)[i]
            same_error(comm, call, UsageError, word)
            right = np.ones(4)
            alone = call if comm.rank == 1 else lambda: c.Bcast(right)  # noqa: B023
            same_error(comm, alone, UsageError, word, "rank 1")
            check(c, "Allgather", 5, "int32")


@pytest.mark.ranks(2, 3)
def test_read_only_values_may_be_sent_and_one_memory_is_in_place(comm):
    with communicator(comm) as c, ways(c) as taken:
        memory, n = np.arange(3.0 * comm.size), 3
        c.Allreduce(memory, memory)
        assert np.array_equal(memory, comm.size * np.arange(3.0 * comm.size))
        own = memory[comm.rank * n : (comm.rank + 1) * n]
        c.Allgather(own, memory)
        assert np.array_equal(memory, comm.size * np.arange(3.0 * comm.size))
        buf = read_only(5) if comm.rank == 1 else np.zeros(5)
        c.Bcast(buf, 1)
        assert buf.all()
        got = np.zeros(5)
        c.Allreduce(read_only(5), got)
        c.Allgather(read_only(2), twice := np.zeros(2 * comm.size))
        c.Reduce_scatter_block(read_only(2 * comm.size), two := np.zeros(2))
        assert (got == comm.size).all() and twice.all() and (two == comm.size).all()
        c.Bcast(np.zeros(0))
        c.Allgather(np.zeros(0), np.zeros(0))
        c.Reduce_scatter_block(MPI.IN_PLACE, np.zeros(0))
        assert all(taken)


@pytest.mark.ranks(2, 3)
def test_a_measured_table_holds_for_the_short_way(comm, tmp_path):
    """Inline as far as it is said, beyond what fits behind a line slots: as on the long way, rank by rank."""
    limits = [[1 << 20, "inline"], [None, "direct"]]
    entries = [
        {"collective": verb, "ranks": comm.size, "nodes": 1, "limits": limits}
        for verb in ("Allreduce", "Reduce_scatter", "Allgather")
    ]
    entries.append({**entries[0], "collective": "Bcast", "limits": [[None, "binomial"]]})
    file = tmp_path / "tuning.json"
    if comm.rank == 0:
        file.write_text(json.dumps({"format": 1, "entries": entries}))
    comm.Barrier()
    with communicator(comm, PSGD_TUNING=str(file)) as c:
        for odd in (None, 0, 1):
            with ways(c, long=comm.rank == odd):
                for verb in VERBS[:3]:
                    for n in (9, 5000, 9000, 30_000):
                        check(c, verb, n, "float64")
                        assert c.last[0] == ("inline" if largest(verb, n, comm.size) <= 64 * 1024 else "slots")
                with ways(c) as taken:
                    check(c, "Bcast", 100, "int32")
                    assert c.last == ("binomial", "messages") and not any(taken)


def largest(verb, n, size):
    """Bytes that a rank puts behind its line."""
    return n * 8 * (size if verb == "Reduce_scatter_block" else 1)


@pytest.mark.ranks(2)
def test_a_freed_communicator_is_an_error_and_a_named_algorithm_goes_the_long_way(comm):
    with communicator(comm) as c, ways(c) as taken:
        c.Bcast(np.ones(4), algorithm="slots")
        c.Allgather(np.ones(1), np.ones(2), algorithm="direct")
        assert c.last[0] == "direct" and not taken
    for call in (c.Barrier, lambda: c.Bcast(np.ones(4)), lambda: c.Allreduce(np.ones(4), np.ones(4), operation("SUM"))):
        same_error(comm, call, UsageError, "freed")
