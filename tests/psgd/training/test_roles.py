import pytest

from psgd.config import TrainConfig
from psgd.kernels.errors import AgreedUsageError
from psgd.training.roles import assign


@pytest.mark.ranks(6)
def test_servers_of_a_mesh_are_the_first_along_its_data_axis(comm):
    roles = assign(TrainConfig(mesh="pipe=2", strategy="sync"), comm)
    assert (roles.servers, roles.workers, roles.serving) == (1, 2, [0])
    everyone = comm.allgather((roles.mesh.coordinates, roles.serves, roles.index, roles.leads, roles.saves))
    for rank, (place, serves, index, leads, saves) in enumerate(everyone):
        assert (serves, index) == ((True, 0) if place["data"] == 0 else (False, place["data"] - 1))
        assert leads == (rank == 0) and saves == (place["data"] == 0)
    assert sum(comm.allgather(roles.counts)) == 3  # one for each copy, the servers' too
    roles.free()


@pytest.mark.ranks(3)
def test_without_a_mesh_all_ranks_have_the_whole_model(comm):
    for options in ({}, {"mesh": "data=3"}):
        roles = assign(TrainConfig(**options), comm)
        assert roles.mesh is None and roles.data is comm
        assert (roles.servers, roles.workers, roles.serves) == (1, 2, comm.rank == 0)
        assert roles.leads and roles.counts and roles.saves == (comm.rank == 0)
        roles.free()


@pytest.mark.ranks(3)
def test_a_mesh_of_other_ranks(comm):
    with pytest.raises(AgreedUsageError, match="mesh: pipe=2: expected 2 ranks, got 3"):
        assign(TrainConfig(mesh="pipe=2", strategy="allreduce"), comm)
