"""Data behind descriptors: every verb at the sizes around a cache line and the largest that fits."""

import pytest
from harness.oracle import VERBS, check, communicator

from psgd.collectives.shm import layout

MOST = layout.INLINE_BYTES // 8


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("verb", VERBS)
def test_around_its_limits(comm, verb):
    with communicator(comm) as c:
        most = MOST // comm.size if verb in ("Reduce_scatter_block", "Allgather") else MOST
        for n in (0, 1, 7, 8, 9, comm.size, most - 1, most):
            check(c, verb, n, "float64", algorithm="inline")
            assert c.last == ("inline", "shared")


@pytest.mark.ranks(3)
def test_two_descriptors_take_turns(comm):
    """A rank that is a call ahead does not write over what a slow one still reads."""
    with communicator(comm) as c:
        for n in range(40):
            check(c, "Allreduce", 1 + n, "int64", "MAX" if n % 2 else "SUM", algorithm="inline")
