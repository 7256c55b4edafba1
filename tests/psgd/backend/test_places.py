"""Who gets which GPU; and one message for all where there is none."""

import importlib.util

import pytest

from psgd.backend.places import choose
from psgd.kernels.errors import AgreedUsageError


@pytest.mark.ranks(3)
def test_who_uses_none_needs_none(comm):
    choose(comm, False)


@pytest.mark.ranks(3)
@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
def test_all_hear_of_what_one_lacks(comm):
    with pytest.raises(AgreedUsageError, match=r"device cuda: expected .*CuPy"):
        choose(comm, comm.rank == 1)
