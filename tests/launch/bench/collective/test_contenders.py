"""Which contenders there are, by options and by what is here."""

import pytest


@pytest.mark.ranks(2)
@pytest.mark.parametrize("buffers", ["private", "registered"])
def test_options_choose_contenders_and_algorithm(comm, buffers):
    from psgd import collectives
    from psgd.launch.bench.collective import table
    from psgd.launch.bench.collective.ranks import measure
    from psgd.launch.bench.problem import BenchOptions

    options = BenchOptions("allreduce", algorithm="ring", buffers=buffers, repeats=2, peers=False)
    with collectives.Communicator(comm) as ours:
        (row,) = measure(comm, options, [4096], ours, None)
    assert set(row.seconds) == ({table.PRIVATE, table.PERSISTENT} if buffers == "private" else set(table.OURS[1:]))
    assert set(row.used.values()) == {("ring", "messages")}


@pytest.mark.ranks(2)
def test_a_peer_that_cannot_is_left_out_and_ours_is_not(comm):
    from psgd.launch.bench.collective import contenders
    from psgd.launch.bench.collective.ranks import np, verify
    from psgd.launch.bench.problem import BenchOptions, Problem

    def fail():
        raise ValueError("no such dtype")

    problem = Problem(BenchOptions("allreduce"), 64, comm.rank, comm.size)
    buffers = contenders.Buffers.make(problem, np.zeros)
    peer = contenders.Contender("peer", fail, buffers.send, buffers.recv, buffers.recv)
    assert verify(comm, problem, [peer], problem.source(), None) == ([], {})
    ours = contenders.Contender("psgd", fail, buffers.send, buffers.recv, buffers.recv, True)
    with pytest.raises(ValueError, match="no such dtype"):
        verify(comm, problem, [ours], problem.source(), None)
