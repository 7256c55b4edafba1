"""What each rank of `psgd bench pushpull` does: a verification that can fail, repeats, gradients."""

import numpy as np
import pytest


@pytest.mark.ranks(2)
def test_verification_can_fail(comm):
    import psgd
    from psgd.launch.bench.pushpull import ranks

    ranks._verify(comm, 1000, 1)
    honest = psgd.connect

    def twice(comm, params, *, lr, **options):
        return honest(comm, params, lr=2 * lr, **options)

    ranks.psgd.connect = twice
    try:
        with pytest.raises(psgd.Error, match="parameters are wrong"):
            ranks._verify(comm, 1000, 1)
    finally:
        ranks.psgd.connect = honest


def test_default_repeats():
    from psgd.launch.bench.pushpull.ranks import default_repeats

    assert [default_repeats(n) for n in (4, 2**20, 2**26, 2**40)] == [2000, 1024, 20, 20]


def test_gradients_are_dyadic_and_disjoint():
    from psgd.launch.bench.pushpull.ranks import _gradient

    parts = [_gradient(101, worker, 3) for worker in range(3)]
    assert all(part.dtype == np.float32 for part in parts)
    np.testing.assert_array_equal(sum(parts), _gradient(101, 0, 1))
    assert sum((part != 0).astype(int) for part in parts).max() == 1
