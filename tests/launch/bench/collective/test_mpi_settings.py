"""Which settings of an MPI are tried for a collective."""

import pytest

from psgd.launch import mpiexec
from psgd.launch.bench.collective import mpi_settings
from psgd.launch.bench.collective.mpi_settings import settings


@pytest.mark.parametrize("collective", ["allreduce", "reducescatter", "allgather", "bcast"])
def test_settings(collective, monkeypatch):
    monkeypatch.setattr(mpi_settings, "tuned_algorithms", lambda variable: {1: "linear", 4: "ring"})
    assert [each.name for each in settings("Intel MPI", collective)] == ["default"]
    first, *others = settings("Open MPI", collective)
    assert first.variables == {}
    assert [each.name for each in others if each.name != "sm"] == ["tuned 1 linear", "tuned 4 ring"]
    assert ("sm" in [each.name for each in others]) == (collective in {"allreduce", "bcast"})
    for each in others:
        assert each.name == "sm" or each.variables["OMPI_MCA_coll_tuned_use_dynamic_rules"] == "1"
    first, *others = settings("MPICH", collective)
    assert len({each.name for each in others}) == len(others) >= 5
    assert all("MPIR_CVAR_" in variable for each in others for variable in each.variables)


def test_the_algorithms_are_those_that_open_mpi_lists():
    found = mpi_settings.tuned_algorithms("coll_tuned_allreduce_algorithm")
    if mpiexec.library().vendor != mpiexec.OPEN_MPI:
        assert found == {}
    else:
        assert {found[3], found[4]} == {"recursive_doubling", "ring"} and 0 not in found
