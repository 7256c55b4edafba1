"""Each function runs its algorithm on a Communicator and on an mpi4py communicator, whose own lives as long."""

import contextlib
import gc
import os
import weakref

import numpy as np
import pytest
from harness.channel import Guarded, expected, same_bits, values
from harness.oracle import communicator, operation, same_error, two_nodes, uneven
from mpi4py import MPI

from psgd import collectives
from psgd.collectives import functions
from psgd.kernels.errors import ContractError, UsageError

ALLREDUCE = ("ring", "recursive_doubling", "rabenseifner", "native")
SIZES = (0, 1, 2, 3, 4, 65, 4097)


@contextlib.contextmanager
def part_of(comm):
    """A communicator of the same ranks in the opposite order, freed where the body did not fail."""
    part = comm.Split(0, -comm.rank)
    yield part
    part.Free()


def took(comm, algorithm):
    return comm.size == 1 or functions._communicator(comm).last[0] == algorithm


def check_allreduce(comm, name, n):
    for text, dtype in (("SUM", "float64"), ("MAX", "int64"), ("mean", "float64")):
        op = operation(text)
        mine, wanted = values(comm.rank, n, dtype, text), expected(comm.size, n, dtype, text)
        send, recv = mine.copy(), Guarded(n, dtype)
        getattr(collectives, f"{name}_allreduce")(comm, send, recv.array, op)
        assert np.array_equal(recv.array, wanted) and recv.intact() and np.array_equal(send, mine), (name, n, text)
        assert took(comm, name) and same_bits(comm, recv.array)
        getattr(collectives, f"{name}_allreduce")(comm, MPI.IN_PLACE, send, op=op)
        assert np.array_equal(send, wanted), (name, n, text)
    send, recv = values(comm.rank, n, "float64"), Guarded(n, "float64")
    getattr(collectives, f"{name}_allreduce")(comm, send, recv.array)
    assert np.array_equal(recv.array, expected(comm.size, n, "float64", "SUM")), (name, n)


def check_others(comm, n):
    rank, size, root = comm.rank, comm.size, n % comm.size
    for name in ("binomial", "chain"):
        buf = Guarded(n, "float32")
        if rank == root:
            buf.array[:] = values(root, n, "float32")
        getattr(collectives, f"{name}_bcast")(comm, buf.array, root)
        assert np.array_equal(buf.array, values(root, n, "float32")) and buf.intact() and took(comm, name), (name, n)

    send, recv = values(rank, n, "float64", "MIN"), Guarded(n, "float64")
    before = recv.array.tobytes()
    collectives.binomial_reduce(comm, send, recv.array, MPI.MIN, root)
    wanted = expected(size, n, "float64", "MIN")
    assert np.array_equal(recv.array, wanted) if rank == root else recv.array.tobytes() == before, n
    assert recv.intact() and np.array_equal(send, values(rank, n, "float64", "MIN")) and took(comm, "binomial"), n

    send, recv = values(rank, n, "float64"), Guarded(n * size, "float64")
    collectives.ring_allgather(comm, send, recv.array)
    wanted = np.concatenate([values(r, n, "float64") for r in range(size)])
    assert np.array_equal(recv.array, wanted) and recv.intact() and took(comm, "ring"), n

    for counts in (uneven(n, size), None):
        lengths = [n] * size if counts is None else counts
        total, first = sum(lengths), sum(lengths[:rank])
        send, recv = values(rank, total, "float64"), Guarded(lengths[rank], "float64")
        given = () if counts is None else (counts, MPI.SUM)
        collectives.ring_reduce_scatter(comm, send, recv.array, *given)
        wanted = expected(size, total, "float64", "SUM")[first : first + lengths[rank]]
        assert np.array_equal(recv.array, wanted) and recv.intact() and took(comm, "ring"), (n, counts)


def of_default_root(comm):
    """Where no root is given it is rank 0."""
    one, out = np.full(3, comm.rank + 5.0), np.full(3, -1.0)
    collectives.binomial_reduce(comm, one, out)
    assert (out == (sum(range(5, 5 + comm.size)) if comm.rank == 0 else -1)).all()
    for bcast in (collectives.binomial_bcast, collectives.chain_bcast):
        buf = one.copy()
        bcast(comm, buf)
        assert (buf == 5).all()


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_each_runs_its_algorithm(comm, shared, wrapped):
    with part_of(comm) as part, communicator(part, PSGD_SHARED=shared) as made:
        if not wrapped:
            part.Set_attr(functions._key(), made)  # as if it had been made under this variable
        ours = made if wrapped else part
        for n in SIZES:
            for name in ALLREDUCE:
                check_allreduce(ours, name, n)
            check_others(ours, n)
        of_default_root(ours)


@pytest.mark.ranks(3)
def test_hierarchical_takes_several_nodes(comm):
    with part_of(comm) as part:
        with two_nodes():
            check_allreduce(part, "hierarchical", 1000)
        check_allreduce(part, "hierarchical", 7)
    with part_of(comm) as part:
        words = ("algorithm: expected one of", "'hierarchical'")
        same_error(comm, lambda: collectives.hierarchical_allreduce(part, np.ones(3), np.ones(3)), UsageError, *words)
        check_allreduce(part, "ring", 7)


@pytest.mark.ranks(2)
def test_one_communicator_for_as_long_as_it_lives(comm):
    x = np.ones(3)
    with part_of(comm) as part:
        collectives.ring_allreduce(part, MPI.IN_PLACE, x)
        kept = functions._communicator(part)
        assert kept is functions._communicator(part)
        assert kept.comm == part and kept.rank == part.rank
        alias = type(part)(part)  # another Python object for the same communicator
        assert functions._communicator(alias) is kept
        copy = part.Dup()
        assert functions._communicator(copy) is not kept
        copy.Free()
        kept.Barrier()
    with pytest.raises(UsageError, match="freed"):
        kept.Barrier()
    gone = weakref.ref(kept)
    del kept
    gc.collect()
    assert gone() is None


@pytest.mark.ranks(2)
def test_hundreds_of_communicators_leave_nothing(comm):
    def one(i):
        part = comm.Split(0, comm.rank)
        x = np.full(3, float(i + comm.rank))
        collectives.ring_allreduce(part, MPI.IN_PLACE, x)
        assert (x == comm.size * i + comm.size * (comm.size - 1) // 2).all()
        part.Free()

    def used():
        with open("/proc/self/maps") as file:
            return len(file.readlines()), len(os.listdir("/proc/self/fd"))

    one(0)
    maps, files = used()
    for i in range(300):
        one(i)
    after = used()
    assert after[0] <= maps + 20 and after[1] <= files


@pytest.mark.ranks(2)
def test_beside_attributes_of_others(comm):
    freed = []
    key = MPI.Comm.Create_keyval(copy_fn=lambda comm, key, value: value, delete_fn=lambda *_: freed.append("theirs"))
    part = comm.Split(0, comm.rank)
    part.Set_attr(key, "theirs")  # which psgd's duplicates of it inherit
    collectives.native_allreduce(part, MPI.IN_PLACE, np.ones(2))
    kept = functions._communicator(part)
    part.Free()
    assert set(freed) == {"theirs"}
    with pytest.raises(UsageError, match="freed"):
        kept.Barrier()
    MPI.Comm.Free_keyval(key)


@pytest.mark.ranks(2)
def test_errors_are_those_of_the_verb(comm):
    with part_of(comm) as part:
        ring = collectives.ring_allreduce
        same_error(comm, lambda: ring(part, np.ones(3), np.ones(4)), UsageError, "3", "4")
    with part_of(comm) as part:
        n = 3 + part.rank
        same_error(comm, lambda: ring(part, np.ones(n), np.ones(n)), ContractError, "rank 1")
    for wrong in (None, MPI.COMM_NULL, MPI.INFO_NULL, "world"):
        with pytest.raises(UsageError, match="intracommunicator"):
            ring(wrong, np.ones(3), np.ones(3))


@pytest.mark.ranks(1)
def test_names_are_listed(comm):
    listed = {name for name in dir(collectives) if name.split("_")[-1] in {"allreduce", "bcast", "allgather", "reduce"}}
    assert {f"{name}_allreduce" for name in (*ALLREDUCE, "hierarchical")} <= listed
    assert {"binomial_bcast", "chain_bcast", "ring_allgather", "binomial_reduce"} <= listed
    assert all(callable(getattr(collectives, name)) for name in dir(collectives) if name != "MEAN")
    with pytest.raises(AttributeError):
        collectives.bubble_allreduce  # noqa: B018


@pytest.mark.job
@pytest.mark.parametrize("finalize", ["", "MPI.Finalize()"])
def test_what_is_never_freed_does_not_disturb_the_end(job, finalize):
    code = f"""
import numpy as np
from mpi4py import MPI
from psgd import collectives
world, x = MPI.COMM_WORLD, np.ones(5)
for comm in (world, MPI.COMM_SELF, world.Split(0, 0)):
    collectives.ring_allreduce(comm, MPI.IN_PLACE, x)
if world.rank == 0:
    print(x[0], flush=True)
{finalize}
"""
    result = job(3, code)
    assert (result.returncode, result.stdout.split(), "Traceback" in result.stderr) == (0, ["9.0"], False), result
