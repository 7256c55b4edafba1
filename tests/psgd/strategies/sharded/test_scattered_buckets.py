"""Buckets that are reduced to their owners: in place, the same bits as all-reduced ones."""

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.strategies.buckets import Buckets
from psgd.strategies.sharded.scattered_buckets import ScatteredBuckets


@pytest.mark.ranks(3)
@pytest.mark.parametrize("n", [2, 7, 100_003])
def test_own_slices_are_those_of_all_reduced_buckets(comm, n):
    like = np.zeros(n, np.float32)
    with Communicator(comm) as wrapped:
        plain, scattered = Buckets(wrapped, like, 1), ScatteredBuckets(wrapped, like, 1)
        for each in (plain, scattered):
            each.compile()
            each.grads[:] = np.sin(np.arange(n) * (comm.rank + 1))
            assert each.add(3)
            each.launch(3)
            if each.early:
                each.wait()
            else:
                each.reduce()
            each.clear()
        for part, own in zip(scattered.slices.own, scattered.own, strict=True):
            np.testing.assert_array_equal(own, plain.sum[part.start : part.stop])
        assert np.abs(plain.sum).max() > 0
        assert scattered.nbytes == 4 * (n - scattered.slices.size)
        plain.free()
        scattered.free()
