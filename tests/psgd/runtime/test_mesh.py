import pytest

from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.runtime.mesh import Mesh


@pytest.mark.ranks(5)
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_roles_and_communicators(comm, servers):
    with Mesh(comm, servers) as mesh:
        assert (mesh.servers, mesh.workers) == (servers, 5 - servers)
        assert mesh.role == ("server" if comm.rank < servers else "worker")
        own = mesh.server if mesh.role == "server" else mesh.worker
        other = mesh.worker if mesh.role == "server" else mesh.server
        assert other is None
        assert (own.rank, own.size) == (mesh.index, servers if mesh.role == "server" else 5 - servers)
        assert mesh.data is mesh.worker
        assert mesh.world.rank == comm.rank
        assert [mesh.server_rank(m) for m in range(servers)] == list(range(servers))
        assert [mesh.worker_rank(w) for w in range(mesh.workers)] == list(range(servers, 5))
    mesh.free()  # a second time does nothing


@pytest.mark.ranks(1)
def test_a_single_rank_is_a_worker(comm):
    with Mesh(comm, 0) as mesh:
        assert (mesh.role, mesh.index, mesh.workers, mesh.servers) == ("worker", 0, 1, 0)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("servers", [-1, 3, 7])
def test_too_many_servers(comm, servers):
    with pytest.raises(UsageError, match=f"got {servers}"):
        Mesh(comm, servers)


@pytest.mark.ranks(2)
def test_no_servers_are_not_too_many(comm):
    with pytest.raises(AgreedUsageError, match=r"got 0: .*strategy without servers"):
        Mesh(comm, 0)
