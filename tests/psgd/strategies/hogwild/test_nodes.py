"""Copies of several nodes, averaged by each node's first worker."""

import numpy as np
import pytest
from harness.peers import nodes_of_two

from psgd.collectives import Communicator
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.memory import counters
from psgd.metrics.totals import Sums
from psgd.strategies.hogwild.nodes import NodeCopies
from psgd.worker.serverless.shared_parameters import SharedParameters


@pytest.mark.ranks(1, 3)
def test_on_one_node_there_is_nothing_to_average(comm):
    memory = SharedParameters(comm, np.zeros(4), tallies=False)
    nodes = NodeCopies(comm, memory, 2, Communicator)
    assert (nodes.leads, nodes.several, nodes.averages) == (comm.rank == 0, False, False)
    assert nodes.leaders == [0] * comm.size and not nodes.due(2) and nodes.known() is None and nodes.free() == 0
    nodes.before = Sums(3, 5, 1.0)
    if nodes.leads:
        nodes.publish()
    comm.Barrier()
    assert nodes.far() == Sums(3, 5, 1.0) and memory.lines.totals()[:2] == (3, 5)
    comm.Barrier()


@pytest.mark.ranks(4)
def test_two_nodes_average_by_their_samples(comm):
    """Node 0 has 3 of 4 samples; a request of any worker reaches both first workers, and worker 0's stop all."""
    with nodes_of_two():
        memory = SharedParameters(comm, np.zeros(4), tallies=False)
        nodes = NodeCopies(comm, memory, 2, Communicator)
    assert nodes.leaders == [0, 1, 0, 1] and nodes.leads == nodes.averages == (comm.rank < 2) and nodes.several
    memory.lines.count([3, 1, 6, 2][comm.rank], 1.0)
    if comm.rank == 3:
        memory.lines.put(counters.WISH, 1)
    if nodes.leads:
        memory.params[:] = 8.0 * (comm.rank + 1)
    comm.Barrier()
    if nodes.leads:
        assert nodes.due(2) and not nodes.due(3)
        assert not nodes.average(done=False, stop=comm.rank == 0)
        assert nodes.request == 1
    comm.Barrier()
    assert memory.params.tolist() == [10.0] * 4, "3/4 of 8 and 1/4 of 16"
    steps, samples, _, stop = memory.lines.totals()
    assert (steps, samples, stop) == (4, 12, 1)
    comm.Barrier()
    memory.lines.put(counters.DONE, 1)
    comm.Barrier()
    if nodes.leads:
        nodes.wait_until_due(Waiter(crowded=True), lambda: None)  # nobody trains: at once
        assert nodes.average(done=True, stop=False) and nodes.request == 0
        assert nodes.far() == Sums(2, [3, 9][comm.rank], [3.0, 9.0][comm.rank])
        assert nodes.free() > 0
    comm.Barrier()
