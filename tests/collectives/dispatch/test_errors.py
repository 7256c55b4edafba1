"""Ranks that pass wrong or different arguments: one error on all of them, soon, and what comes after it."""

import numpy as np
import pytest
from harness.oracle import check, communicator, same_error
from mpi4py import MPI

from psgd.collectives.dispatch import control
from psgd.collectives.dispatch.errors import Failures
from psgd.kernels.errors import AgreedError, ContractError, PeerLostError, UsageError

WAYS = pytest.mark.parametrize("variables", [{}, {"PSGD_CHECK": "1"}, {"PSGD_SHARED": "0", "PSGD_CHECK": "1"}], ids=str)


def pair(n, dtype="float64"):
    return np.ones(n, dtype), np.zeros(n, dtype)


def odd(comm):
    """The rank that does it differently."""
    return comm.rank == comm.size - 1


MISMATCHES = {
    "length": lambda c, x: c.Allreduce(*pair(100 + x)),
    "much longer": lambda c, x: c.Allreduce(*pair(100_000 if x else 100)),
    "empty": lambda c, x: c.Allreduce(*pair(0 if x else 100)),
    "dtype": lambda c, x: c.Allreduce(*pair(99, "int32" if x else "float32")),
    "dtype, large": lambda c, x: c.Allreduce(*pair(300_000, "int32" if x else "float32")),
    "bytes alike": lambda c, x: c.Allreduce(*(pair(50, "float64") if x else pair(100, "float32"))),
    "op": lambda c, x: c.Allreduce(*pair(99), MPI.MAX if x else MPI.SUM),
    "mean": lambda c, x: c.Allreduce(*pair(99), "mean" if x else MPI.SUM),
    "shape": lambda c, x: c.Allreduce(*(a.reshape((6, 4) if x else (4, 6)) for a in pair(24))),
    "algorithm": lambda c, x: c.Allreduce(*pair(99), algorithm="ring" if x else "native"),
    "call": lambda c, x: c.Allgather(np.ones(4), np.ones(4 * c.size)) if x else c.Allreduce(*pair(4 * c.size)),
    "barrier": lambda c, x: c.Barrier() if x else c.Allreduce(*pair(9)),
    "counts": lambda c, x: c.Reduce_scatter(
        np.ones(4 * c.size), np.ones(9), [4 + (r == x) - (r == 1 - x) for r in range(c.size)]
    ),
    "block": lambda c, x: c.Allgather(np.ones(4 + x), np.ones((4 + x) * c.size)),
    "root": lambda c, x: c.Bcast(np.ones(9), int(x)),
    "root of Reduce": lambda c, x: c.Reduce(*pair(9), root=int(x)),
    "length of Bcast": lambda c, x: c.Bcast(np.ones(9 + x)),
}


@WAYS
@pytest.mark.ranks(2, 3, 5)
def test_a_mismatch_is_one_error_on_all_ranks_and_the_communicator_goes_on(comm, variables):
    others = "rank 0" if comm.size == 2 else f"ranks 0-{comm.size - 2}"
    with communicator(comm, **variables) as c:
        for kind in ("float32", "float64", "int32"):
            check(c, "Allreduce", 99, kind)  # compiled now, so that the time of the errors is theirs
        for call in MISMATCHES.values():
            same_error(comm, lambda call=call: call(c, odd(comm)), ContractError, others, f"rank {comm.size - 1}")
            check(c, "Allreduce", 1000, "float32")
            check(c, "Bcast", 100, "int64")


NOTICED = ("length", "much longer", "empty", "dtype", "bytes alike", "op", "shape", "call", "barrier", "block")


@pytest.mark.ranks(2, 3, 4, timeout=12)
@pytest.mark.parametrize("what", NOTICED)
def test_over_messages_too_without_being_asked(comm, what):
    with communicator(comm, PSGD_SHARED="0") as c:
        same_error(comm, lambda: MISMATCHES[what](c, odd(comm)), ContractError, f"rank {comm.size - 1}")
        same_error(comm, c.Barrier, ContractError, "cannot be used any more")


@pytest.mark.ranks(3)
def test_a_message_of_an_earlier_call_is_never_taken_for_one_of_this(comm):
    """Two ranks that both think they are the root send and go on; what they sent must not become a later result."""
    control._PATIENCE_S, patience = 0.5, control._PATIENCE_S
    c = communicator(comm, PSGD_SHARED="0").__enter__()
    got = np.full(4, comm.rank + 1.0)
    try:
        c.Bcast(got.copy(), root=min(comm.rank, 1))
        c.Bcast(got, root=1)
        said = got.tolist()
    except ContractError:
        said = "error"
    assert all(each in ("error", [2.0] * 4) for each in comm.allgather(said))
    again = np.full(4, 10.0 * (comm.rank + 1))
    try:
        c.Bcast(again, root=1)
        said = again.tolist()
    except ContractError:
        said = "error"
    control._PATIENCE_S = patience
    everyone = comm.allgather(said)
    assert all(each in ("error", [20.0] * 4) for each in everyone), everyone


WRONG = {
    "overlap": (lambda c, a: c.Allreduce(a[:60], a[20:80]), "overlap"),
    "overlap of a block": (lambda c, a: c.Allgather(a[1:5], a[: 4 * c.size]), "overlap"),
    "overlap of Reduce": (lambda c, a: c.Reduce(a[:60], a[20:80], root=c.size - 1), "overlap"),
    "object": (lambda c, a: c.Allreduce(np.array([1, None], object), a[:2]), "object"),
    "list": (lambda c, a: c.Allreduce([1.0, 2.0], a[:2]), "sendbuf"),
    "none": (lambda c, a: c.Allreduce(None, a[:2]), "sendbuf"),
    "masked": (lambda c, a: c.Allreduce(np.ma.array([1.0, 2.0]), a[:2]), "mask"),
    "long double": (lambda c, a: c.Allreduce(a[:2].astype(np.longdouble), a[:2]), "sendbuf"),
    "two dtypes": (lambda c, a: c.Allreduce(a[:2].astype("f4"), a[4:6]), "float32"),
    "two lengths": (lambda c, a: c.Allreduce(a[:3], a[4:6]), "3"),
    "op": (lambda c, a: c.Allreduce(a[:2], a[4:6], "median"), "median"),
    "mean of integers": (lambda c, a: c.Allreduce(np.ones(2, int), np.ones(2, int), "mean"), "int64"),
    "minimum of complex": (lambda c, a: c.Allreduce(np.ones(2, "c8"), np.ones(2, "c8"), MPI.MIN), "complex64"),
    "root": (lambda c, a: c.Bcast(a, c.size), "root"),
    "algorithm": (lambda c, a: c.Bcast(a, 0, algorithm="quick"), "quick"),
    "algorithm of another": (lambda c, a: c.Bcast(a, 0, algorithm="rabenseifner"), "rabenseifner"),
    "cut": (lambda c, a: c.Allgather(a[:1], a[1 : c.size]), "recvbuf"),
    "counts": (lambda c, a: c.Reduce_scatter(a[:5], a[50:], [5] * (c.size + 1)), "counts"),
    "negative": (lambda c, a: c.Reduce_scatter(a[:5], a[50:], [-1] * c.size), "counts"),
    "too small": (lambda c, a: c.Reduce_scatter(a[: 2 * c.size], a[50:51], [2] * c.size), "recvbuf"),
}


def read_only(a):
    a.flags.writeable = False
    return a


@WAYS
@pytest.mark.ranks(2, 3)
def test_wrong_arguments_on_all_or_one_rank_are_a_usage_error_on_all(comm, variables):
    with communicator(comm, **variables) as c:
        for call, word in WRONG.values():
            same_error(comm, lambda call=call: call(c, np.ones(100)), UsageError, word)
        for call, word in WRONG.values():
            alone = lambda call=call: call(c, np.ones(100)) if odd(comm) else c.Allreduce(*pair(2))  # noqa: E731
            same_error(comm, alone, UsageError, word, f"rank {comm.size - 1}")
        recv = read_only(np.zeros(9)) if odd(comm) else np.zeros(9)
        same_error(comm, lambda: c.Allreduce(np.ones(9), recv), UsageError, "recvbuf", "read-only", "float64")
        check(c, "Allreduce", 1000, "float32")


@pytest.mark.ranks(2)
def test_wrong_arguments_over_messages(comm):
    for call, word in WRONG.values():
        c = communicator(comm, PSGD_SHARED="0").__enter__()
        alone = lambda call=call, c=c: call(c, np.ones(100)) if odd(comm) else c.Allreduce(*pair(2))  # noqa: E731
        same_error(comm, alone, UsageError, word, "rank 1")


def said_by(call):
    """The error of a call, without what depends on the number of ranks."""
    with pytest.raises(UsageError) as caught:
        call()
    assert isinstance(caught.value, AgreedError)
    return str(caught.value).split(" expected ")[0].split("rank 1: ")[-1]


@pytest.mark.ranks(2)
def test_wrong_arguments_on_a_single_rank_are_the_same_errors(comm):
    with communicator(MPI.COMM_SELF) as alone, communicator(comm) as c:
        for name, (call, _) in WRONG.items():
            if name == "cut":  # one rank has blocks of any length
                continue
            assert said_by(lambda call=call: call(alone, np.ones(100))) == said_by(
                lambda call=call: call(c, np.ones(100))
            ), name
        recv = np.zeros(4)
        for start in (c.Iallreduce, alone.Iallreduce):
            request = start(recv[:3], recv[1:])  # the start is not what fails, as other ranks could not be told
            assert said_by(request.Wait) == "Allreduce: sendbuf and recvbuf:"
        for prepare in (c.Allreduce_init, alone.Allreduce_init):
            assert said_by(lambda prepare=prepare: prepare(recv[:3], recv[1:])) == "Allreduce: sendbuf and recvbuf:"
        check(alone, "Allreduce", 1000, "float32")
        check(c, "Allreduce", 1000, "float32")


def read_only_calls(c):
    """Every verb with memory that may not be written where the verb only reads; rank 0 is the root."""
    size, root = c.size, c.rank == 0
    sent, whole = read_only(np.arange(6.0)), read_only(np.arange(6.0 * size))
    results = [np.arange(6.0) if root else np.zeros(6), np.zeros(6), np.zeros(6), np.zeros(6), np.zeros(6)]
    if root:
        read_only(results[0])
    c.Bcast(results[0])
    c.Bcast(memoryview(bytes(results[0])) if root else results[1].view(np.uint8))
    c.Bcast(read_only(np.arange(12.0))[::2] if root else np.zeros(6))
    c.Bcast(np.broadcast_to(3.0, 6) if root else results[2])
    with c.Bcast_init(sent if root else results[3]) as request:
        request.run(), request.Start(), request.Wait()
    assert root or [each[1] for each in results[:4]] == [1.0, 1.0, 3.0, 1.0]
    for call, wanted in (
        (lambda out: c.Allreduce(sent, out), size * sent),
        (lambda out: c.Reduce(sent, out), size * sent if root else np.zeros(6)),
        (lambda out: c.Reduce_scatter(whole, out), size * whole[6 * c.rank :][:6]),
        (lambda out: c.Reduce_scatter_block(whole, out), size * whole[6 * c.rank :][:6]),
        (lambda out: c.Iallreduce(sent, out).Wait(), size * sent),
        (lambda out: c.Ireduce_scatter(whole, out).Wait(), size * whole[6 * c.rank :][:6]),
        (lambda out: c.Allreduce_init(sent, out).run(), size * sent),
    ):
        out = np.zeros(6)
        call(out)
        assert np.array_equal(out, wanted)
    for gather in (c.Allgather, c.Allgatherv, lambda *both: c.Iallgather(*both).Wait()):
        out = np.zeros(6 * size)
        gather(sent, out)
        assert np.array_equal(out, np.tile(sent, size))
    c.Barrier()


@pytest.mark.ranks(2)
def test_one_rank_reads_read_only_memory_as_several_do(comm):
    with communicator(MPI.COMM_SELF) as alone, communicator(comm) as c:
        for each in (alone, c):
            read_only_calls(each)
            check(each, "Allreduce", 1000, "float32")


@pytest.mark.ranks(2)
def test_overlap_in_memory_is_seen_for_strided_arrays_too(comm):
    with communicator(comm) as c:
        a = np.arange(16.0)
        same_error(comm, lambda: c.Allreduce(a[:8], a[::2]), UsageError, "overlap")
        same_error(comm, lambda: c.Allgather(a[:2], a[:8:2][: 2 * comm.size]), UsageError, "overlap")
        assert np.array_equal(a, np.arange(16.0))
        c.Allreduce(a[::2], a[1::2])  # side by side, but apart
        assert np.array_equal(a[1::2], 2 * np.arange(0, 16.0, 2))


HANDED_TO_MPI = {
    "dtype": lambda c, x: c.Allreduce(*pair(8, "int32" if x else "float32"), algorithm="native"),
    "length": lambda c, x: c.Allreduce(*pair(9 if x else 8), algorithm="native"),
    "much longer": lambda c, x: c.Bcast(np.ones(90_000 if x else 8), algorithm="native"),
    "op": lambda c, x: c.Allreduce(*pair(8, int), MPI.BAND if x else MPI.BOR),
    "op, in place": lambda c, x: c.Reduce_scatter(*pair(c.size, int), [1] * c.size, MPI.LAND if x else MPI.LOR),
    "one of the program's": lambda c, x: c.Allreduce(*pair(8), OWN if x else MPI.SUM),
    "root": lambda c, x: c.Reduce(*pair(8, int), MPI.BXOR, int(x)),
    "verb": lambda c, x: (c.Reduce if x else c.Allreduce)(*pair(8), algorithm="native"),
    "shape": lambda c, x: c.Allreduce(*(a.reshape(2, 4) if x else a.reshape(4, 2) for a in pair(8, int)), MPI.BOR),
    "request": lambda c, x: c.Iallreduce(*pair(8, int), MPI.BAND if x else MPI.BOR).Wait(),
    "persistent": lambda c, x: c.Bcast_init(np.ones(9 + x), algorithm="native").run(),
    "wrong argument": lambda c, x: c.Allreduce(np.ones(9 + x), np.zeros(9), algorithm="native"),
    "wrong operation": lambda c, x: c.Allreduce(*pair(8, float if x else int), MPI.BOR),
    "wrong algorithm": lambda c, x: c.Allreduce(*pair(8), algorithm="quick" if x else "native"),
}
OWN = MPI.Op.Create(lambda a, b, datatype: None, commute=True)


@pytest.mark.ranks(2, 3, timeout=20)
@pytest.mark.parametrize("shared", ["0", "1"])
def test_what_goes_to_mpi_is_compared_before(comm, shared):
    for name, call in HANDED_TO_MPI.items():
        c = communicator(comm, PSGD_SHARED=shared).__enter__()
        wrong = name.startswith("wrong")
        kind = UsageError if wrong else ContractError
        same_error(comm, lambda: call(c, odd(comm)), kind, f"rank {comm.size - 1}")  # noqa: B023
        if not wrong and name != "one of the program's":  # no message was on its way
            check(c, "Allreduce", 100, "float32")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_what_mpi_refuses_leaves_the_communicator_usable(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        same_error(comm, lambda: c.Allreduce(*pair(3), MPI.BOR), UsageError, "BOR", "float64")
        if shared == "1":
            check(c, "Allreduce", 100, "float32")


@pytest.mark.ranks(3)
def test_shapes_may_differ_between_sendbuf_and_recvbuf_by_any_way(comm):
    """Contiguous memory takes a shorter way; both ways must tell the same shape."""
    with communicator(comm) as c:
        recv = np.zeros((2, 6))[:, ::2] if comm.rank == 0 else np.zeros((2, 3))
        c.Allreduce(np.ones((3, 2)), recv)
        assert (recv == comm.size).all()


@pytest.mark.ranks(2, 3, timeout=6)
def test_empty_refuses_alike_on_all_ranks(comm):
    with communicator(comm) as c:
        same_error(comm, lambda: c.empty(5 + comm.rank), ContractError, "empty")
        same_error(comm, lambda: c.empty(-5), UsageError, "empty")
        same_error(comm, lambda: c.empty(5, object if odd(comm) else float), UsageError, "empty", "object")


@pytest.mark.ranks(2)
def test_a_broken_communicator_says_the_same_at_every_call(comm):
    c = communicator(comm, PSGD_SHARED="0").__enter__()
    same_error(comm, lambda: c.Iallreduce(*pair(3 + comm.rank)).Wait(), ContractError, "rank 0")
    texts = [same_error(comm, lambda: c.Iallreduce(*pair(3)).Wait(), ContractError, "any more") for _ in range(3)]
    assert len(set(texts)) == 1, texts


def test_the_error_of_a_request_is_raised_once_where_the_program_looks_first():
    failures = Failures.__new__(Failures)
    failures.broken, failures.untold, lost = "", None, PeerLostError("rank 1 left")
    assert failures.keep(lost) is lost
    failures.check()  # an error that leaves the communicator usable is the request's alone
    failures.broken = "PeerLostError: rank 1 left"
    failures.keep(lost)
    failures.keep(ContractError("a later one"))
    with pytest.raises(PeerLostError, match="rank 1 left"):
        failures.check()
    with pytest.raises(ContractError, match="cannot be used any more"):
        failures.check()
