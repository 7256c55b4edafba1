import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.strategies.decentralized import distance


@pytest.mark.ranks(1, 3)
def test_largest(comm):
    """Worker k is 2 k + 1 away in one element; an empty vector is nowhere away."""
    with Communicator(comm) as together:
        common = np.linspace(-1, 1, 65)
        own = common.copy()
        own[3 + comm.rank] -= 2 * comm.rank + 1
        assert distance.largest(together, own, common) == pytest.approx(2 * comm.size - 1, rel=1e-12)
        assert distance.largest(together, np.empty(0), np.empty(0)) == 0.0
