"""Every contender carries out every collective; verification finds one wrong element; timings have their shape."""

import pytest

NAMES = ("allreduce", "reducescatter", "allgather", "bcast")


CASES = [
    *((name, "float32", "sum") for name in NAMES),
    ("allreduce", "float64", "mean"),
    ("reducescatter", "int8", "prod"),
    ("reducescatter", "float16", "mean"),
    ("allgather", "float16", "sum"),
]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(("collective", "dtype", "op"), CASES)
def test_rows(comm, collective, dtype, op):
    from psgd import collectives
    from psgd.launch.bench.collective import table
    from psgd.launch.bench.collective.ranks import measure
    from psgd.launch.bench.problem import BenchOptions

    options = BenchOptions(collective, dtype, op, repeats=2)
    with collectives.Communicator(comm) as ours:
        rows = list(measure(comm, options, [4096, 100003], ours, None))
    assert len(rows) == 2
    ours = {*(table.OURS if collective != "bcast" else table.OURS[:2]), table.PERSISTENT}
    peers = {table.MPI_NAME, table.MPI_IN_PLACE} if collective != "bcast" else {table.MPI_NAME}
    peers.add(table.MPI_PERSISTENT)
    for row in rows:
        names = set(row.seconds)
        assert names == ours | peers or (dtype == "float16" and names == ours)  # not every MPI has float16
        assert set(row.used) == ours
        assert min(row.seconds.values()) > 0
        assert (row.repeats, row.ranks) == (2, comm.size)
    told = comm.allgather([row.seconds for row in rows])
    assert all(each == told[0] for each in told)


class Errs:
    """Spoils one element on one rank, of the named verb's result."""

    def __init__(self, comm, rank, index):
        self.comm, self.rank, self.index = comm, rank, index
        self.last = ("a", "b")

    def __getattr__(self, name):
        call = getattr(self.comm, name)

        def wrong(*buffers):
            call(*buffers)
            if self.comm.rank == self.rank:
                buffers[0 if name == "Bcast" else 1][self.index] += 1

        return wrong


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("collective", NAMES)
@pytest.mark.parametrize("place", ["out of place", "in place"])
def test_one_wrong_element_is_found(comm, collective, place):
    from psgd.kernels.errors import Error
    from psgd.launch.bench.collective import contenders
    from psgd.launch.bench.collective.ranks import MPI, np, verify
    from psgd.launch.bench.problem import BenchOptions, Problem

    if place == "in place" and collective == "bcast":
        pytest.skip("a broadcast is always in place")
    problem = Problem(BenchOptions(collective), 4 * 1023, comm.rank, comm.size)
    buffers = contenders.Buffers.make(problem, np.empty)
    make = contenders.in_place if place == "in place" else contenders.out_of_place
    source = problem.source()
    honest = make("honest", comm, problem, buffers, MPI.SUM)
    able, used = verify(comm, problem, [honest], source, None)
    assert (able, used) == ([honest], {})
    wrong = make("spoiled", Errs(comm, 1, 77), problem, buffers, MPI.SUM)
    with pytest.raises(
        Error, match=rf"bench {collective}: spoiled, .*: wrong result on rank 1: element 77 is"
    ) as caught:
        verify(comm, problem, [honest, wrong], source, wrong)
    assert len(set(comm.allgather(str(caught.value)))) == 1


@pytest.mark.ranks(2)
def test_a_call_that_leaves_the_buffer_alone_is_wrong(comm):
    from psgd.kernels.errors import Error
    from psgd.launch.bench.collective import contenders
    from psgd.launch.bench.collective.ranks import np, verify
    from psgd.launch.bench.problem import BenchOptions, Problem

    problem = Problem(BenchOptions("allreduce", "uint8"), 4096, comm.rank, comm.size)
    buffers = contenders.Buffers.make(problem, np.zeros)
    idle = contenders.Contender("idle", lambda: None, buffers.send, buffers.recv, buffers.recv)
    with pytest.raises(Error, match=r"idle.*rank 0: element"):
        verify(comm, problem, [idle], problem.source(), None)


@pytest.mark.ranks(2)
def test_the_slowest_rank_counts_and_values_are_fresh(comm):
    import time

    from psgd.launch.bench.collective.contenders import Contender
    from psgd.launch.bench.collective.ranks import np, rounds_of, timed

    buffer, seen = np.zeros(4), []

    def call():
        seen.append(buffer.tolist())
        buffer[:] = -1
        time.sleep(0.01 * comm.rank)

    contender = Contender("slow", call, buffer, buffer, buffer)
    seconds = timed(rounds_of(comm, [contender, contender], np.arange(4.0)), 2**20, 3)
    assert seconds.shape == (2, 3)
    assert seconds.min() >= 0.01  # on rank 0 too, which never sleeps
    assert seen == [[0, 1, 2, 3]] * (2 * (1 + 1 + 3))


@pytest.mark.ranks(1)
def test_loop(comm):
    from psgd.launch.bench.collective.ranks import loop

    assert [loop(n) for n in (4, 655, 4096, 65535, 65536, 2**30)] == [100, 100, 16, 1, 1, 1]
