"""The norm over all shards on real ranks: each counts once, and what one of two holders has not said the other says."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.kernels.errors import PeerLostError
from psgd.kernels.exact_squares import rounded, squares
from psgd.runtime.mesh import Mesh
from psgd.server.replicas.holders import Holders
from psgd.server.replicas.norm_exchange import NormExchange

SERVERS = 4
PARTS = [np.random.default_rng(shard).normal(size=100) * 10.0**shard for shard in range(SERVERS)]
WHOLE = rounded(squares(np.concatenate(PARTS)))


def exchange(mesh, dead):
    """Its waits find out who is dead as soon as they ask; before that nobody knows it."""

    def wait(server, request):
        if server in dead:
            return False
        request.Wait()
        return True

    return NormExchange(mesh, wait)


def total(norms, mesh, holders):
    own = {shard: squares(PARTS[shard]) for shard in holders.held_by(mesh.index)}
    return rounded(norms.total(holders, own))


@pytest.mark.ranks(5)
def test_each_shard_counts_once_whoever_lives(comm):
    mesh = Mesh(comm, servers=SERVERS)
    if mesh.role == "server":
        dead = set()
        norms = exchange(mesh, dead)
        for lost in ((), (1,), (1, 3)):
            if mesh.index not in lost:
                dead.update(lost)
                for _ in range(2):
                    assert total(norms, mesh, Holders(SERVERS, lost)) == WHOLE
        norms.close()
    comm.Barrier()
    mesh.free()


@pytest.mark.ranks(5)
def test_one_that_dies_before_the_order_says_so_is_stood_in_for_and_two_holders_are_not(comm):
    mesh, all_live = Mesh(comm, servers=SERVERS), Holders(SERVERS)
    if mesh.role == "server":
        told = []
        mesh.survival = SimpleNamespace(not_survived=lambda: told.append(mesh.index))
        dead = set()
        norms = exchange(mesh, dead)
        assert total(norms, mesh, all_live) == WHOLE
        dead.add(2)
        if mesh.index != 2:
            for _ in range(2):
                assert total(norms, mesh, all_live) == WHOLE
            dead.add(3)  # with 2 it had shard 2, which only they had
            if mesh.index != 3:
                with pytest.raises(PeerLostError, match=r"servers 2 and 3 ended: they held shard 2"):
                    total(norms, mesh, all_live)
                assert told
        norms.close()
    comm.Barrier()
    mesh.free()
