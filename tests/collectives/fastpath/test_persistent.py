"""Persistent calls: bound once, started often, the same results and errors as the calls that they stand for."""

import time

import numpy as np
import pytest
from harness.channel import sizes, values
from harness.oracle import VERBS, check, communicator, same_error
from mpi4py import MPI

from psgd import collectives
from psgd.collectives.algorithms import native
from psgd.kernels.errors import ContractError, UsageError

WAYS = pytest.mark.parametrize("variables", [{}, {"PSGD_SHARED": "0"}, {"PSGD_CHECK": "1"}, {"PSGD_PROGRESS": "1"}])


def start_and_wait(request):
    request.Start()
    assert request.Wait() is True


def start_and_test(request):
    request.Start()
    while not request.Test():
        time.sleep(0)


STARTS = (collectives.Prequest.run, start_and_wait, start_and_test)


class Bound:
    """Carries out each verb by a request that is made for it."""

    def __init__(self, comm, start):
        self._comm, self._start = comm, start
        self.rank, self.size = comm.rank, comm.size

    def __getattr__(self, name):
        def call(*arguments, **given):
            if name in {"allgather", "allreduce"}:
                return getattr(self._comm, name)(*arguments, **given)
            with getattr(self._comm, f"{name}_init")(*arguments, **given) as request:
                return self._start(request)

        return call


@WAYS
@pytest.mark.ranks(1, 2, 3, 5, timeout=120)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_each_verb_against_numpy(comm, verb, variables):
    with communicator(comm, **variables) as c:
        for i, n in enumerate((*sizes(comm.size, 1023), 100_003)):
            bound = Bound(c, STARTS[i % 3])
            check(bound, verb, n, ("float32", "float64", "int64")[i % 3])
            check(bound, verb, n, "float64", "mean" if verb.startswith(("All", "Red")) else "SUM")
        assert c.Barrier_init().Wait() is True
        assert not c.Allreduce_init(MPI.IN_PLACE, np.ones(3)).Enqueue()  # of arrays on the host


def sums(size, n, turn):
    return sum(values(rank, n, "float64") + turn * rank for rank in range(size))


@WAYS
@pytest.mark.ranks(1, 2, 3, 5, timeout=120)
@pytest.mark.parametrize("n", [0, 1, 1023, 16_384, 100_003])
def test_many_starts_on_changing_values(comm, n, variables):
    rank, size = comm.rank, comm.size
    with communicator(comm, **variables) as c:
        send, recv, own = np.empty(n), np.empty(n), np.empty(n)
        wide, block = np.empty(n * size), np.empty(n)
        blocks, everyone = np.empty(n), np.empty(n * size)
        root = n % size
        data, total = np.empty(n), np.empty(n)
        ragged = [n + r for r in range(size)]
        mine, long = np.empty(n + rank), np.empty(sum(ragged))
        kept = np.empty(n + rank)
        requests = [
            c.Allreduce_init(send, recv),
            c.Allreduce_init(MPI.IN_PLACE, own),
            c.Reduce_scatter_block_init(wide, block),
            c.Allgather_init(blocks, everyone),
            c.Bcast_init(data, root),
            c.Reduce_init(send, total, root=root),
            c.Allgatherv_init(mine, [long, ragged]),
            c.Reduce_scatter_init(long, kept, ragged),
            c.Barrier_init(),
        ]
        for turn in range(5):
            send[:] = own[:] = values(rank, n, "float64") + turn * rank
            wide[:] = np.tile(send, size)
            blocks[:] = rank + turn
            data[:] = 7.0 * turn if rank == root else -1
            mine[:] = rank - turn
            for i, request in enumerate(requests):
                if i == 7:  # its input is what Allgatherv has gathered
                    assert np.array_equal(long, np.concatenate([np.full(m, r - turn) for r, m in enumerate(ragged)]))
                STARTS[(turn + i) % 3](request)
            wanted = sums(size, n, turn)
            for got in (recv, own, block, *((total,) if rank == root else ())):
                np.testing.assert_array_equal(got, wanted)
            assert np.array_equal(everyone, np.repeat(np.arange(size) + turn, n)) and (data == 7.0 * turn).all()
            assert (kept == size * (rank - turn)).all()
            assert np.array_equal(send, values(rank, n, "float64") + turn * rank)
        for request in requests:
            request.Free()


@WAYS
@pytest.mark.ranks(1, 2, 3, timeout=60)
def test_buffers_that_are_copied(comm, variables):
    """Strided and byte-swapped ones, 16-bit floats: what they hold at each start counts, and results go back."""
    rank, size = comm.rank, comm.size
    with communicator(comm, **variables) as c:
        send, recv = np.zeros((40, 30))[::2, ::3], np.zeros((30, 40)).T[::2, ::3]
        swapped, half = np.zeros(1001, ">f8"), np.zeros(1001, "f2")
        bits, whole = np.zeros(1001, "u2"), np.zeros(1001, "u2")
        requests = [
            c.Allreduce_init(send, recv),
            c.Allreduce_init(MPI.IN_PLACE, swapped),
            c.Allreduce_init(MPI.IN_PLACE, half),
            c.Allreduce_init([bits, "bfloat16"], [whole, "bfloat16"], collectives.MEAN),
        ]
        for turn in range(4):
            send[...] = np.arange(200).reshape(20, 10) + rank * turn
            swapped[:] = half[:] = rank + turn
            bits[:] = np.full(1001, 2.0 * rank + turn, "f4").view("u4") >> 16
            for i, request in enumerate(requests):
                STARTS[(turn + i) % 3](request)
            assert np.array_equal(recv, np.arange(200).reshape(20, 10) * size + turn * size * (size - 1) / 2)
            assert (swapped == sum(r + turn for r in range(size))).all() and (half == swapped.astype("f2")).all()
            assert (whole == np.float32(size - 1 + turn).view("u4") >> 16).all()


@WAYS
@pytest.mark.ranks(2, 3, timeout=60)
def test_between_other_calls_and_in_any_order_of_waits(comm, variables):
    rank, size = comm.rank, comm.size
    with communicator(comm, **variables) as c:
        arrays = [np.empty(n) for n in (3, 5000, 60_000, 200_000)]
        requests = [c.Allreduce_init(MPI.IN_PLACE, each) for each in arrays]
        for turn in range(6):
            for each in arrays:
                each[:] = rank + turn
            one, other = np.full(100, 1.0 + rank), np.full(100_000, 2.0)
            collectives.Prequest.Startall(requests[:2])
            pending = c.Iallreduce(MPI.IN_PLACE, one)
            collectives.Prequest.Startall(requests[2:])
            c.Allreduce(MPI.IN_PLACE, other)
            more = c.Iallgather(np.full(4, rank), np.empty(4 * size, int))
            for i in np.random.default_rng(rank + turn).permutation(len(requests)):
                assert requests[i].Wait()
            pending.Wait()
            more.Wait()
            assert all((each == sum(r + turn for r in range(size))).all() for each in arrays)
            assert (other == 2.0 * size).all() and (one == size + size * (size - 1) / 2).all()
            requests[turn % 4].run()
            assert (arrays[turn % 4] == size * sum(r + turn for r in range(size))).all()


@pytest.mark.ranks(2, 3)
def test_registered_memory_and_what_was_registered_later(comm):
    with communicator(comm) as c:
        a, b = c.empty(50_000), c.empty(50_000)
        request = c.Allreduce_init(a, b)
        kept = []
        for turn in range(8):
            a[:] = comm.rank + turn
            request.run()
            assert (b == sum(r + turn for r in range(comm.size))).all()
            if c.last[1] == "shared":
                assert request.last == ("direct", "registered")
            kept.append(c.empty(1000))  # the table of registrations grows and moves


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("algorithm", ["inline", "slots", "direct", "ring", "recursive_doubling", "native"])
@pytest.mark.both_mpis_whole
def test_algorithms_by_name_have_the_bits_of_the_plain_call(comm, algorithm):
    with communicator(comm) as c:
        send = np.random.default_rng(comm.rank).standard_normal(5001).astype("f4")
        plain, bound = np.empty_like(send), np.empty_like(send)
        c.Iallreduce(send, plain, algorithm=algorithm).Wait()
        with c.Allreduce_init(send, bound, algorithm=algorithm) as request:
            for start in STARTS:
                bound[:] = 0
                start(request)
                assert bound.tobytes() == plain.tobytes()
                assert request.last[0] == algorithm


@WAYS
@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_what_is_handed_to_mpi(comm, verb, variables):
    with communicator(comm, **variables) as c:
        for i, n in enumerate(sizes(comm.size, 1023)):
            check(Bound(c, STARTS[i % 3]), verb, n, "float64", algorithm="native")
        bits, root = np.array([1 << comm.rank, 1]), comm.size - 1
        with c.Reduce_init(MPI.IN_PLACE if comm.rank == root else bits, bits, MPI.BOR, root) as request:
            request.run()
        assert comm.rank != root or bits.tolist() == [2**comm.size - 1, 1]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_what_mpi_takes_in_pieces_only(comm, verb):
    before, native.CHUNK = native.CHUNK, 500
    try:
        with communicator(comm) as c:
            check(Bound(c, start_and_wait), verb, 1023, "float64", algorithm="native")
    finally:
        native.CHUNK = before


@WAYS
@pytest.mark.ranks(2, 3)
def test_ranks_that_disagree_hear_so_when_it_is_made(comm, variables):
    rank = comm.rank
    c = communicator(comm, **variables).__enter__()
    a, b = np.ones(100 + (rank == 1)), np.ones(100 + (rank == 1))
    same_error(comm, lambda: c.Allreduce_init(a, b), ContractError, "rank 1 Allreduce_init(float64, 101 elements, SUM)")
    c = communicator(comm, **variables).__enter__()
    wrong = np.ones(3 if rank else 4)
    same_error(comm, lambda: c.Allreduce_init(wrong, np.ones(3)), UsageError, "rank 0: Allreduce: sendbuf")
    c = communicator(comm, **variables).__enter__()
    made = c.Allreduce_init if rank else c.Reduce_scatter_block_init
    same_error(comm, lambda: made(MPI.IN_PLACE, np.ones(6)), ContractError, "rank 0 Reduce_scatter_block_init")


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_a_request_and_a_plain_call_do_not_meet_while_it_is_made(comm, shared):
    c = communicator(comm, PSGD_SHARED=shared).__enter__()
    x = np.ones(10)
    made = c.Iallreduce if comm.rank else c.Allreduce_init

    def call():
        request = made(MPI.IN_PLACE, x)
        request.Wait()

    same_error(comm, call, ContractError, "rank 0 Allreduce_init(", "Allreduce(")


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("start", range(3))
def test_other_requests_started_is_the_same_error_and_all_goes_on(comm, start):
    with communicator(comm) as c:
        if c.nodes > 1 or c.last is None:
            return
        x, y = np.ones(10), np.ones(2000)
        requests = [c.Allreduce_init(MPI.IN_PLACE, x), c.Allreduce_init(MPI.IN_PLACE, y)]
        wrong = requests[comm.rank == 1]
        same_error(comm, lambda: STARTS[start](wrong), ContractError, "rank 1 Allreduce(float64, 2000 elements")
        for request in requests:
            STARTS[start](request)
        assert (x == comm.size).all() and (y == comm.size).all()


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_life_of_a_request(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        x = np.ones(5)
        request = c.Allreduce_init(MPI.IN_PLACE, x)
        assert request.Test() and request.Wait()  # never started, as MPI has it
        request.Start()
        for again in (request.Start, request.run):
            with pytest.raises(UsageError, match=r"Start: expected a persistent request that is not active"):
                again()
        with pytest.raises(UsageError, match="Free: expected a persistent request that is not active"):
            request.Free()
        assert request.Wait() and request.Wait() and (x == comm.size).all()
        request.Free()
        request.Free()
        for use in (request.Start, request.Wait, request.Test, request.run):
            with pytest.raises(UsageError, match="this persistent request was freed; create a new one"):
                use()
        last = c.Barrier_init()
    for use in (last.Start, last.run):
        with pytest.raises(UsageError, match="this communicator was freed"):
            use()
    with pytest.raises(UsageError, match="this communicator was freed"):
        c.Barrier_init()


@pytest.mark.ranks(1)
def test_wrong_arguments_on_one_rank(comm):
    with communicator(comm) as c, pytest.raises(UsageError, match="sendbuf: expected 3 elements"):
        c.Allreduce_init(np.ones(4), np.ones(3))


@pytest.mark.ranks(2, 3, timeout=30)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_a_late_rank_is_waited_for(comm, shared):
    """Longer than a kernel looks for it, so that all that is in between is walked through."""
    with communicator(comm, PSGD_SHARED=shared) as c:
        arrays = [np.ones(n) for n in (10, 20_000, 300_000)]
        requests = [c.Allreduce_init(MPI.IN_PLACE, each) for each in arrays]
        for turn, start in enumerate(STARTS):
            for request in requests:
                time.sleep(0.02 * (comm.rank == turn % comm.size))
                start(request)
        assert all((each == comm.size**3).all() for each in arrays)


@pytest.mark.ranks(2, 3, timeout=30)
def test_a_started_call_needs_no_wait_to_let_others_end_theirs(comm):
    """Through slots every rank has several turns; those of the one that waits elsewhere are taken meanwhile."""
    with communicator(comm) as c, communicator(comm) as other:
        x = np.ones(100_000)
        request = c.Allreduce_init(MPI.IN_PLACE, x, algorithm="slots" if c.nodes == 1 and shares(c) else None)
        request.Start()
        if comm.rank == 0:
            other.Barrier()
            request.Wait()
        else:
            request.Wait()
            other.Barrier()
        assert (x == comm.size).all()


def shares(c):
    c.Barrier()
    return c.last[1] == "shared"


KILLED = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
from psgd import collectives
from psgd.collectives.algorithms import native
from psgd.kernels.errors import PeerLostError
world = MPI.COMM_WORLD
c = collectives.Communicator(world)
x = np.zeros({n})
request = c.Allreduce_init(MPI.IN_PLACE, x)
start = time.monotonic()
try:
    for i in range(10**9):
        start = time.monotonic()
        if world.rank == 1 and i == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        {call}
except PeerLostError as error:
    when = "early" if time.monotonic() - start < 5 else "late"
    print(f"rank {{world.rank}} lost a peer: {{error}}", when, flush=True)
    open(os.path.join("{folder}", str(world.rank)), "w").close()
    limit = time.monotonic() + 10
    while len(os.listdir("{folder}")) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
os._exit(3)
"""


@pytest.mark.parametrize("call", ["request.run()", "request.Start(); request.Wait()"])
@pytest.mark.parametrize("n", [1000, 200_000])
def test_survivors_learn_of_a_killed_rank(job, n, call, tmp_path):
    folder = tmp_path / "survivors"
    folder.mkdir()
    result = job(3, KILLED.format(n=n, call=call, folder=folder), ulfm=True, timeout=25)
    assert result.returncode != 0
    for rank in (0, 2):
        assert f"rank {rank} lost a peer: Allreduce(float64, {n} elements, SUM)" in result.stdout, result
    assert result.stdout.count("early") == 2
