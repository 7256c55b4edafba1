"""A node's copy and those of other nodes, seen from each worker."""

import numpy as np
import pytest
from harness.peers import nodes_of_two

from psgd.metrics.totals import Sums
from psgd.strategies.hogwild.nodes import NodeCopies
from psgd.worker.serverless.shared_parameters import SharedParameters


@pytest.mark.ranks(2)
def test_one_node_averages_with_nobody(comm):
    memory = SharedParameters(comm, np.zeros(4), False)
    copies = NodeCopies(comm, memory, 3)
    assert copies.leaders == [0, 0] and not copies.several and not copies.averages
    assert copies.leads == (comm.rank == 0) and not copies.due(3)
    assert copies.far() == Sums(0, 0, 0.0) and copies.known() is None and copies.free() == 0
    comm.Barrier()


@pytest.mark.ranks(4)
def test_first_workers_average_by_the_samples_of_their_nodes(comm):
    with nodes_of_two():
        memory = SharedParameters(comm, np.zeros(4), False)
        copies = NodeCopies(comm, memory, 3)
    assert copies.leaders == [0, 1, 0, 1] and copies.several
    assert copies.leads == copies.averages == (comm.rank < 2)
    assert copies.due(3) == copies.due(6) == (comm.rank < 2) and not copies.due(4)
    comm.Barrier()
    if copies.leads:
        memory.params[:] = 8.0 * (comm.rank + 1)
    memory.lines.count(3 if comm.rank % 2 == 0 else 1, 1.0)  # 6 samples on the one node, 2 on the other
    comm.Barrier()
    if copies.leads:
        assert not copies.average(done=False, stop=False)
    comm.Barrier()
    np.testing.assert_array_equal(memory.params, 0.75 * 8 + 0.25 * 16)
    if copies.leads:
        assert copies.far() == (Sums(2, 2, 2.0) if comm.rank == 0 else Sums(2, 6, 6.0))
        assert copies.average(done=True, stop=False)
        assert copies.free() > 0
    comm.Barrier()
