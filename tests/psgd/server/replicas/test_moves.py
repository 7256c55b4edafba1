"""Shards between real ranks: what is moved arrives whole, and what a dead source had is named."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.runtime.mesh import Mesh
from psgd.server.replicas import moves
from psgd.server.replicas.holders import Holders, Move


def wait(server, request):
    request.Wait()
    return True


@pytest.mark.ranks(4)
def test_all_arrays_of_a_shard_arrive_and_at_the_end_all_shards(comm):
    mesh = Mesh(comm, servers=3)
    if mesh.role == "server":
        mine = {"params": np.full(5, mesh.index + 1.0), "velocity": np.full(5, -1.0 - mesh.index, np.float32)}
        state = SimpleNamespace(tensors=mine)
        shards = SimpleNamespace(state=lambda shard: state, add_shard=lambda shard: state)
        planned = [Move(0, 1, 2), Move(2, 2, 1)]
        if mesh.index == 1:
            state = SimpleNamespace(tensors={name: array.copy() for name, array in mine.items()})
            fresh = SimpleNamespace(tensors={name: np.zeros_like(array) for name, array in mine.items()})
            shards = SimpleNamespace(state=lambda shard: state, add_shard=lambda shard: fresh)
        if mesh.index == 2:
            fresh = SimpleNamespace(tensors={name: np.zeros_like(array) for name, array in mine.items()})
            shards = SimpleNamespace(state=lambda shard: state, add_shard=lambda shard: fresh)
        if mesh.index:
            assert moves.carry_out(planned, shards, mesh, wait) == []
            assert set(fresh.tensors["params"]) == {4.0 - mesh.index}
            assert set(fresh.tensors["velocity"]) == {mesh.index - 4.0}
            params = np.zeros(9)
            parts = [range(0, 4), range(4, 6), range(6, 9)]
            holders = Holders(3, [0])
            for shard in holders.held_by(mesh.index):
                params[parts[shard].start : parts[shard].stop] = shard + 1
            assert moves.share(params, parts, holders, mesh, wait)
            assert params.tolist() == [1] * 4 + [2] * 2 + [3] * 3
        else:
            assert moves.carry_out(planned, shards, mesh, wait) == []
            assert moves.carry_out([], shards, mesh, lambda *each: False) == []
    mesh.free()


def test_what_did_not_come_is_told_to_whom_it_was_to_come(monkeypatch):
    monkeypatch.setattr(moves, "_begin", lambda *each: None)
    shards = SimpleNamespace(
        state=lambda shard: SimpleNamespace(tensors={"a": 1}), add_shard=lambda shard: SimpleNamespace(tensors={"a": 1})
    )
    for server, expected in ((0, []), (1, [Move(5, 0, 1)])):
        mesh = SimpleNamespace(index=server)
        assert moves.carry_out([Move(5, 0, 1)], shards, mesh, lambda other, request: False) == expected
