import json

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError
from psgd.runtime.mesh import Mesh
from psgd.runtime.placement import checked, choose, index

BLOCK = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
CYCLIC = ["a", "b", "c"] * 4


@pytest.mark.parametrize(
    ("nodes", "servers", "placement", "expected"),
    [
        (BLOCK, 3, "dedicated", [0, 1, 2]),
        (BLOCK, 3, "spread", [0, 4, 8]),
        (BLOCK, 4, "spread", [0, 4, 8, 1]),
        (BLOCK, 3, "auto", [0, 4, 8]),
        (BLOCK, 6, "colocated", [0, 2, 4, 6, 8, 10]),
        (CYCLIC, 3, "spread", [0, 1, 2]),
        (CYCLIC, 3, "colocated", [0, 1, 2]),
        (CYCLIC, 6, "colocated", [0, 6, 1, 7, 2, 8]),
        (["a"] * 5, 2, "auto", [0, 1]),
        (["a"] * 5, 2, "colocated", [0, 2]),
        (["a"], 0, "auto", []),
        # Nodes of unequal size: in proportion to their ranks, or as many as there are of each.
        (["a"] * 6 + ["b"] * 3, 3, "colocated", [0, 3, 6]),
        (["a"] * 5 + ["b"], 3, "spread", [0, 5, 1]),
    ],
)
def test_choose(nodes, servers, placement, expected):
    assert choose(nodes, servers, placement) == expected


def test_a_choice_is_always_a_placement():
    rng = np.random.default_rng(3)
    for _ in range(300):
        size = int(rng.integers(2, 40))
        nodes = [f"n{k}" for k in rng.integers(0, rng.integers(1, 6), size)]
        servers = int(rng.integers(1, size))
        for placement in ("auto", "dedicated", "spread", "colocated"):
            ranks = choose(nodes, servers, placement)
            assert checked(ranks, servers, size) == ranks
            places = [index(rank, ranks) for rank in range(size)]
            assert [places[rank] for rank in ranks] == list(range(servers))
            assert [p for rank, p in enumerate(places) if rank not in ranks] == list(range(size - servers))


@pytest.mark.parametrize("placement", ["near", [1, 2], [0, 0], [0], [0, 5], [0, "x"], 3])
def test_what_is_none_is_refused(placement):
    with pytest.raises(UsageError, match="placement: expected"):
        checked(placement, 2, 5)


@pytest.mark.ranks(5)
def test_mesh_of_a_table(comm):
    serving = [0, 3]
    with Mesh(comm, 2, serving=serving) as mesh:
        assert mesh.role == ("server" if comm.rank in serving else "worker")
        assert mesh.index == {0: 0, 3: 1, 1: 0, 2: 1, 4: 2}[comm.rank]
        own = mesh.server if mesh.role == "server" else mesh.worker
        assert (own.rank, own.size) == (mesh.index, 2 if mesh.role == "server" else 3)
        there = mesh.server_rank(mesh.index) if mesh.role == "server" else mesh.worker_rank(mesh.index)
        assert mesh.world.rank == there  # numbered by role in this communicator, whatever the ranks outside


def train(comm, placement, strategy="sync"):
    """Final parameters on workers; each worker's gradient depends on its index, as a shard of data does."""
    params = np.linspace(-1, 1, 4097)
    with psgd.connect(comm, params, strategy=strategy, servers=2, placement=placement, lr=0.125) as ps:
        for step in range(7):
            ps.grads[:] = np.cos(ps.params * (ps.worker + 2) + step)
            ps.step(samples=ps.worker + 1)
    return None if ps.is_server else params


def simulate(workers):
    params = np.linspace(-1, 1, 4097)
    for step in range(7):
        total = sum((w + 1) * np.cos(params * (w + 2) + step) for w in range(workers))
        params = params - 0.125 * total / sum(w + 1 for w in range(workers))
    return params


@pytest.mark.ranks(5)
def test_who_serves_changes_no_bit(comm):
    plain = comm.allgather(train(comm, "dedicated"))
    assert [p is None for p in plain] == [True, True, False, False, False]
    np.testing.assert_allclose(plain[2], simulate(3), atol=1e-12)
    for placement in ([0, 3], "colocated"):
        moved = comm.allgather(train(comm, placement))
        assert [p is None for p in moved] == [rank in ([0, 3] if placement == [0, 3] else [0, 2]) for rank in range(5)]
        for params in filter(lambda p: p is not None, moved):
            np.testing.assert_array_equal(params, plain[2])
    train(comm, [0, 4], "async")
    with pytest.raises(UsageError, match=r"psgd.connect on rank 0: placement: expected 2 different ranks of 5"):
        train(comm, [0, 5])
    with pytest.raises(psgd.ContractError, match="the same placement"):
        train(comm, "spread" if comm.rank == 3 else "dedicated")


HOSTS = """
import hashlib, json
import numpy as np
from mpi4py import MPI
import psgd
comm = MPI.COMM_WORLD
found = {}
for placement in ("auto", "spread", "dedicated", "colocated"):
    params = np.linspace(-1, 1, 3001)
    with psgd.connect(comm, params, servers=2, placement=placement) as ps:
        for step in range(3):
            ps.grads[:] = np.cos(ps.params * (ps.worker + 2) + step)
            ps.step()
    mine = None if ps.is_server else hashlib.sha256(params.tobytes()).hexdigest()
    found[placement] = comm.gather((ps.mesh.role, ps.mesh.index, mine))
if comm.rank == 0:
    print(json.dumps(found))
"""


@pytest.mark.job
def test_two_hosts(hosts):
    found = json.loads(hosts(2).run(3, HOSTS, timeout=50, check=True).stdout)
    serving = {
        name: [rank for rank, (role, _, _) in enumerate(each) if role == "server"] for name, each in found.items()
    }
    assert serving == {"auto": [0, 3], "spread": [0, 3], "dedicated": [0, 1], "colocated": [0, 3]}
    assert len({digest for each in found.values() for _, _, digest in each if digest}) == 1
