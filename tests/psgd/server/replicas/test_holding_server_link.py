"""A worker's link to a server: it sends what the server holds, and takes what it answers for."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.server.replicas.holding_server_link import HoldingServerLink


@pytest.mark.ranks(3)
def test_segments_go_by_who_is_dead(comm):
    mesh = SimpleNamespace(world=comm, server_rank=lambda server: server, servers=3)
    shards = [range(0, 5), range(5, 9), range(9, 12)]
    context = SimpleNamespace(mesh=mesh, params=np.zeros(12), settings=0, shards=shards, segment=3)
    link = HoldingServerLink(context, 1, np.zeros(12), shared=False)
    assert len(link.grads_out) == 2 + 2 and len(link.params_in) == 2 and link.bits == 0  # shards 0 and 1; 1
    assert link._ranges([0, 2]) == [slice(0, 3), slice(3, 5), slice(9, 12)]
    link.hold(1)  # server 0 is dead: 1 answers for shards 0 and 1, and stands by for 2
    assert len(link.grads_out) == 5 and len(link.params_in) == 4 and link.bits == 1
    same = link.params_in
    link.hold(1)
    assert link.params_in is same and link.arrived() and link.sent()
    link.hold(5)  # all
    assert len(link.grads_out) == len(link.params_in) == 5
    seen = HoldingServerLink(context, 0, np.zeros(12), shared=True)
    assert seen.grads_out == [] and len(seen.params_in) == 2
