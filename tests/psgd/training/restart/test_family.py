"""What is made of a communicator of a family belongs to it. What ends them all is tried in `test_crew`."""

import pytest


@pytest.mark.ranks(2)
def test_all_that_is_made_of_it_belongs_to_it(comm):
    from mpi4py import MPI

    from psgd.training.restart.family import Family, FamilyComm

    family = Family()
    first = family.adopt(comm.Dup())
    made = [first.Dup(), first.Split(comm.rank), first.Split_type(MPI.COMM_TYPE_SHARED)]
    made += [made[1].Dup(), first.Split(MPI.UNDEFINED if comm.rank else 0)]
    assert all(isinstance(each, FamilyComm) and each.family is family for each in made)
    assert (made[-1] == MPI.COMM_NULL) == bool(comm.rank) and made[1].size == 1
    family.advance()
    for each in (first, *made):
        if each != MPI.COMM_NULL:
            each.Free()
    assert first == MPI.COMM_NULL
