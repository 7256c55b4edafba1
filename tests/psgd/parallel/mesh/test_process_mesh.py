from unittest import mock

import pytest

from psgd.kernels.errors import AgreedContractError, AgreedUsageError, UsageError
from psgd.parallel import mesh as module
from psgd.parallel.mesh import ProcessMesh, sizes_for


def on(node):
    """This rank is on a node of that name."""
    return mock.patch.object(module, "node_name", return_value=node)


@pytest.mark.parametrize(
    ("ranks", "given", "expected"),
    [
        (8, {"pipe": 2, "tensor": 2, "data": 2}, (2, 2, 2)),
        (8, {"pipe": 4}, (1, 4, 2)),
        (6, {}, (1, 1, 6)),
        (1, {"data": 1}, (1, 1, 1)),
    ],
)
def test_sizes(ranks, given, expected):
    assert sizes_for(ranks, **given) == dict(zip(("tensor", "pipe", "data"), expected, strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pipe": 4, "data": 3}, r"mesh: pipe=4,data=3: expected 12 ranks, got 8; start it with -n 12"),
        ({"tensor": 3}, r"mesh: tensor=3: expected a multiple of 3 ranks, got 8; start it with -n 3"),
        ({"data": 1}, "one rank along every axis: expected 1 ranks, got 8"),
        ({"pipe": 0}, "mesh: pipe: expected 1 or more ranks, got 0"),
        ({"pipe": -1}, "mesh: pipe: expected a whole number of 0 or more, got -1"),
        ({"tensor": 2.0}, "mesh: tensor: expected a whole number, got 2.0"),
    ],
)
def test_what_so_many_ranks_cannot_be(given, message):
    with pytest.raises(UsageError, match=message):
        sizes_for(8, **given)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("nodes", ["aaaabbbb", "abababab"])
def test_communicators_follow_the_coordinates(comm, nodes):
    with on(nodes[comm.rank]), ProcessMesh(comm, pipe=2, tensor=2) as mesh:
        here = mesh.coordinates
        assert mesh.sizes == {"tensor": 2, "pipe": 2, "data": 2} and mesh.is_cut
        assert mesh.world.rank == comm.rank
        assert {name: getattr(mesh, name).rank for name in here} == here
        assert [getattr(mesh, name).size for name in here] == [2, 2, 2]
        assert (mesh.replica.size, mesh.replica.rank) == (4, 2 * here["pipe"] + here["tensor"])
        everyone = comm.allgather(here)
        assert everyone == mesh.places
        for name in here:  # one that differs along this axis alone
            other = getattr(mesh, name).allgather(here)
            assert [each[name] for each in other] == [0, 1]
            assert all({**each, name: 0} == {**here, name: 0} for each in other)
        assert {each["data"] for each in mesh.replica.allgather(here)} == {here["data"]}
        assert {nodes[rank] for rank in mesh.replica.allgather(comm.rank)} == {nodes[comm.rank]}
        shown = "mesh: tensor 2 (inside a node), pipe 2 (inside a node), data 2 (between nodes)"
        assert mesh.describe() == shown
    mesh.free()  # a second time does nothing


@pytest.mark.ranks(3)
def test_where_some_groups_leave_a_node(comm):
    with on("aab"[comm.rank]), ProcessMesh(comm) as mesh:
        assert mesh.describe() == "mesh: data 3 (between nodes)" and not mesh.is_cut
        assert mesh.data.size == 3 and mesh.pipe.size == mesh.tensor.size == mesh.replica.size == 1


@pytest.mark.ranks(1)
def test_one_rank(comm):
    with ProcessMesh(comm) as mesh:
        assert mesh.describe() == "mesh: one rank along every axis"
        assert mesh.places == [{"tensor": 0, "pipe": 0, "data": 0}]


@pytest.mark.ranks(3)
def test_sizes_that_do_not_fit_are_refused_on_all_ranks(comm):
    with pytest.raises(AgreedUsageError, match="mesh: pipe=2,data=2: expected 4 ranks, got 3; start it with -n 4"):
        ProcessMesh(comm, pipe=2, data=2)
    with pytest.raises(AgreedUsageError, match="tensor: expected 1 or more ranks, got 0"):
        ProcessMesh(comm, tensor=0 if comm.rank == 1 else 1)


@pytest.mark.ranks(2)
def test_ranks_that_ask_for_different_meshes_get_one_error(comm):
    with pytest.raises(AgreedContractError, match=r"all ranks must pass the same tensor, got 1 on .*2 on rank"):
        ProcessMesh(comm, tensor=comm.rank + 1)
