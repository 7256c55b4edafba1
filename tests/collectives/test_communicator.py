"""Every verb on real ranks, by every way through, against NumPy."""

import numpy as np
import pytest
from harness.channel import CASES, Guarded, same_bits, sizes, values
from harness.oracle import MESSAGES, REDUCING, SHARED, VERBS, check, communicator, two_nodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from psgd import collectives

DTYPES = ("float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64", "uint8", "uint64")


def plan(verb, lengths, start=0):
    for i, n in enumerate(lengths, start):
        dtype, op = CASES[i % len(CASES)] if verb in REDUCING else (DTYPES[i % 8], "SUM")
        yield n, dtype, op


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_every_verb_by_the_default_way(comm, verb, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        for n, dtype, op in plan(verb, sizes(comm.size, 1023, 4097, 20_000, 100_003)):
            check(c, verb, n, dtype, op)


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_every_algorithm(comm, verb):
    with communicator(comm) as c:
        for k, algorithm in enumerate((*SHARED, *MESSAGES[verb])):
            lengths = sizes(comm.size, 777) if algorithm == "inline" else sizes(comm.size, 4097, 70_001)
            for n, dtype, op in plan(verb, lengths, k):
                check(c, verb, n, dtype, op, algorithm)
                assert n == 0 or c.last[0] == algorithm, (c.last, algorithm, n)


@pytest.mark.ranks(2, 3)
def test_slots_take_turns_over_calls_of_changing_verbs_and_sizes(comm):
    """Every slot is used many times, and calls begin with any of them."""
    lengths = np.random.default_rng(1).integers(1, 300_000, 60)
    with communicator(comm) as c:
        for i, n in enumerate(lengths.tolist()):
            check(c, ("Allreduce", "Allreduce", "Allgather", "Bcast")[i % 4], n, "float32", algorithm="slots")


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_every_algorithm_over_messages_with_headers(comm, verb):
    with communicator(comm, PSGD_SHARED="0") as c:
        for k, algorithm in enumerate(MESSAGES[verb]):
            for n, dtype, op in plan(verb, sizes(comm.size, 4097, 70_001), k):
                check(c, verb, n, dtype, op, algorithm)
                assert c.last == (algorithm, "mpi" if algorithm == "native" else "messages")


@pytest.mark.ranks(2, 3, 5)
def test_several_nodes(comm):
    with two_nodes(), communicator(comm) as c:
        for n, dtype, op in plan("Allreduce", sizes(comm.size, 4097, 100_003)):
            check(c, "Allreduce", n, dtype, op)
            assert c.last[0] == ("hierarchical" if comm.size > 2 else c.last[0])
        for verb in VERBS[1:]:
            check(c, verb, 1023, "float32")
        c.Barrier()
        mine = c.empty(1000)
        mine[:] = comm.rank + 1
        c.Allreduce(MPI.IN_PLACE, mine)
        assert (mine == comm.size * (comm.size + 1) / 2).all()


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
def test_random_values_have_the_same_bits_everywhere_and_every_time(comm, dtype):
    """Every algorithm with every dtype; the float64 oracle bounds what rounding may do."""
    n = 5003
    everyone = np.random.default_rng(3).normal(size=(2, comm.size, n)) * 20
    everyone = (everyone[0] + 1j * everyone[1] if dtype[0] == "c" else everyone[0]).astype(dtype)
    wide = {"f": np.float64, "c": np.complex128, "i": np.int64, "u": np.uint64}[dtype[0]]
    exact = everyone.astype(wide).sum(0)
    for shared in ("1", "0"):
        with communicator(comm, PSGD_SHARED=shared) as c:
            for algorithm in (None, *(SHARED[1:] if shared == "1" else ()), *MESSAGES["Allreduce"]):
                runs = []
                for _ in range(2):
                    recv = Guarded(n, dtype)
                    c.Allreduce(everyone[comm.rank].copy(), recv.array, algorithm=algorithm)
                    assert recv.intact()
                    assert same_bits(comm, recv.array) or algorithm == "native", algorithm
                    runs.append(recv.array.copy())
                assert runs[0].tobytes() == runs[1].tobytes(), algorithm
                if algorithm == "native" and dtype in {"int8", "uint8", "int16"}:
                    continue  # Open MPI's vector code saturates where its scalar code wraps around
                if dtype[0] in "iu":
                    assert np.array_equal(runs[0], exact.astype(dtype)), algorithm  # wraps around alike
                else:
                    eps = np.finfo(dtype).eps
                    assert (abs(runs[0] - exact) <= comm.size * eps * abs(everyone.astype(wide)).sum(0)).all(), (
                        algorithm
                    )


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_minimum_and_maximum_keep_nan(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        for n in (comm.size + 2, 30_000, 200_003):
            mine = np.arange(n, dtype=np.float32) + comm.rank
            mine[comm.rank] = np.nan
            for op, wanted in ((MPI.MIN, np.arange(n)), (MPI.MAX, np.arange(n) + comm.size - 1)):
                recv = np.zeros(n, np.float32)
                c.Allreduce(mine, recv, op)
                assert np.isnan(recv[: comm.size]).all()
                assert np.array_equal(recv[comm.size :], wanted[comm.size :])


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_operations_of_mpi_and_of_the_program_go_to_mpi(comm, shared):
    def absmax(a, b, datatype):
        x, y = np.frombuffer(a, np.int64), np.frombuffer(b, np.int64)
        y[:] = np.maximum(abs(x), abs(y))

    own = MPI.Op.Create(absmax, commute=True)
    with communicator(comm, PSGD_SHARED=shared) as c:
        mine, recv = (np.arange(700) + 1) << comm.rank, np.zeros(700, np.int64)
        for op in (MPI.BOR, MPI.BAND, MPI.BXOR, MPI.LAND, own):
            wanted = np.zeros(700, np.int64)
            comm.Allreduce(-mine if op == own else mine, wanted, op)
            c.Allreduce(-mine if op == own else mine, recv, op)
            assert np.array_equal(recv, wanted)
            assert c.last == ("native", "mpi")
        truth, recv = np.arange(9) % 2 == comm.rank % 2, np.zeros(9, bool)
        c.Allreduce(truth, recv, MPI.LOR)
        assert recv.all()
    own.Free()


@pytest.mark.ranks(2, 3, 5)
def test_the_mean_by_both_names(comm):
    with communicator(comm) as c:
        for op in ("mean", collectives.MEAN):
            for n in (5, 100_003):
                recv = np.empty(n)
                c.Allreduce(values(comm.rank, n, "float64"), recv, op)
                total = sum(values(rank, n, "float64") for rank in range(comm.size))
                assert np.array_equal(recv, total / comm.size)


@pytest.mark.ranks(1, 2, 5)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_in_place_means_what_it_means_to_mpi4py(comm, shared):
    size, rank = comm.size, comm.rank
    counts = [2 * r + 1 for r in range(size)]
    calls = [
        lambda c, b: c.Allreduce(MPI.IN_PLACE, b),
        lambda c, b: c.Reduce(MPI.IN_PLACE if rank == size - 1 else b, b if rank == size - 1 else None, root=size - 1),
        lambda c, b: c.Reduce_scatter_block(MPI.IN_PLACE, b[: 4 * size]),
        lambda c, b: c.Reduce_scatter(MPI.IN_PLACE, b[: sum(counts)], counts),
        lambda c, b: c.Allgather(MPI.IN_PLACE, b[: 4 * size]),
        lambda c, b: c.Allgatherv(MPI.IN_PLACE, [b, counts]),
        lambda c, b: c.Bcast(b, size - 1),
    ]
    with communicator(comm, PSGD_SHARED=shared) as c:
        for i, call in enumerate(calls):
            ours, theirs = values(rank, 60, "int32"), values(rank, 60, "int32")
            call(c, ours)
            call(comm, theirs)
            kept = 4 if i == 2 else counts[rank] if i == 3 else 60  # the rest is scratch to MPI
            assert np.array_equal(ours[:kept], theirs[:kept]), i


@pytest.mark.ranks(2, 3, 5)
def test_sequences_of_mixed_calls_equal_mpi4py(comm):
    """Hypothesis draws the same sequences on all ranks; all ranks must see the same failures, or they would part."""
    step = st.tuples(
        st.sampled_from(sorted(SEQUENCE)),
        st.sampled_from([0, 1, 2, 7, 64, 65, 1000, 9000, 70_001]),
        st.sampled_from(["float32", "int64", "complex128", "float64"]),
        st.booleans(),
    )

    @settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(step, min_size=1, max_size=25))
    def run(steps):
        for verb, n, dtype, by_memory in steps:
            ours, theirs = np.full(n * comm.size + 3, 7, dtype), np.full(n * comm.size + 3, 7, dtype)
            mine = values(comm.rank, n * comm.size, dtype)
            before, c = mine.copy(), shared if by_memory else plain
            SEQUENCE[verb](c, mine, ours, n)
            SEQUENCE[verb](comm, mine, theirs, n)
            fine = np.array_equal(ours, theirs) and np.array_equal(mine, before)
            assert all(comm.allgather(bool(fine))), (verb, n, dtype, by_memory)

    with communicator(comm) as shared, communicator(comm, PSGD_SHARED="0") as plain:
        run()


SEQUENCE = {
    "Allreduce": lambda c, a, b, n: c.Allreduce(a, b[: a.size]),
    "Allreduce of rows": lambda c, a, b, n: c.Allreduce(a.reshape(-1, c.size), b[: a.size].reshape(-1, c.size)),
    "Reduce": lambda c, a, b, n: c.Reduce(a[:n], b[:n] if c.rank == n % c.size else None, root=n % c.size),
    "Reduce_scatter": lambda c, a, b, n: c.Reduce_scatter(
        a, b[: 2 * n * (c.rank == 0) + n * (c.rank > 1)], [2 * n, 0] + [n] * (c.size - 2)
    ),
    "Reduce_scatter_block": lambda c, a, b, n: c.Reduce_scatter_block(a, b[:n]),
    "Allgather": lambda c, a, b, n: c.Allgather(a[:n], b[: n * c.size]),
    "Allgatherv": lambda c, a, b, n: c.Allgatherv(
        a[: n - (n > 0) * (c.rank == 0)],
        [b, ([n - (n > 0), *[n] * (c.size - 1)], [r * n + (r > 0) for r in range(c.size)])],
    ),
    "Bcast": lambda c, a, b, n: c.Bcast(a[:n] if c.rank == 1 else b[:n], root=1),
    "Barrier": lambda c, a, b, n: c.Barrier(),
}


@pytest.mark.ranks(2)
def test_the_algorithm_of_a_size_is_known_before_the_call(comm):
    with collectives.Communicator(comm) as ours:
        for n in (1, 1000, 30_000):
            ours.Allreduce(np.ones(n), np.empty(n))
            assert ours.last[0] == ours.algorithm("Allreduce", 8 * n)
