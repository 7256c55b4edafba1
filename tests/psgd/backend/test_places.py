"""Who gets which GPU; and one message for all where there is none."""

import importlib.util

import pytest

from psgd.backend import places
from psgd.kernels.errors import AgreedUsageError


@pytest.mark.ranks(3)
def test_who_uses_none_needs_none(comm):
    places.check(comm, False)
    places.choose(comm, False)


@pytest.mark.ranks(3)
@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
@pytest.mark.parametrize("look", ["check", "choose"])
def test_all_hear_of_what_one_lacks(comm, look):
    with pytest.raises(AgreedUsageError, match=r"device cuda: expected .*CuPy"):
        getattr(places, look)(comm, comm.rank == 1)
