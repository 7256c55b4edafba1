"""A device call alone, on a communicator of one rank; `harness/device_ranks.py` has all verbs on several."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


@pytest.mark.ranks(1)
def test_an_array_of_a_single_rank_is_its_own_sum(comm):
    xp = cupy()
    from psgd.collectives import Communicator

    send = xp.arange(200_000, dtype=np.float32)
    out = xp.zeros_like(send)
    with Communicator(comm) as c:
        c.Allreduce(send, out)
    np.testing.assert_array_equal(out.get(), np.arange(200_000, dtype=np.float32))
    np.testing.assert_array_equal(send.get(), np.arange(200_000, dtype=np.float32))
