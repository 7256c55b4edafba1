"""Short messages between servers: in order, of any length, with silence from one that is lost."""

import numpy as np
import pytest

from psgd.runtime.mesh import Mesh
from psgd.server.surviving.peers import Peers


def unexpected(error):
    raise error


@pytest.mark.ranks(3)
def test_messages_come_in_order_with_their_senders(comm):
    mesh = Mesh(comm, servers=2)
    if mesh.role == "server":
        peers, other = Peers(mesh, 9, unexpected), 1 - mesh.index
        sent = [[mesh.index, number, *range(number)] for number in range(5)]
        for words in sent:
            peers.send(other, words)
        found = []
        while len(found) < len(sent):
            found.extend(peers.received())
        assert found == [(other, [other, *words[1:]]) for words in sent]
        while not peers.sent({0, 1}):
            pass
        mesh.server.Barrier()
        peers.lost(other)
        assert list(peers.received()) == []
        peers.close()
    np.testing.assert_equal(comm.allreduce(1), 3)
    mesh.free()
