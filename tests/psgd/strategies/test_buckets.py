"""Sums of weighed gradients over workers, at once and in buckets, against NumPy in worker order."""

import os

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.strategies import buckets


def gradient(rank, step, n):
    return np.sin(np.arange(n) * (rank + 1.0) + step)


def summed(size, steps, n, counts):
    """Samples * gradient of each worker's steps, added in worker order."""
    total = None
    for rank in range(size):
        own = np.zeros(n)
        for step in range(steps):
            own = own + counts[rank][step] * gradient(rank, step, n)
        total = own if total is None else total + own
    return total


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_sum_is_that_of_all_workers_steps(comm, steps):
    n, counts = 1003, [[3, 0, 5], [2, 4, 1], [0, 7, 2]]
    with Communicator(comm) as c:
        made = buckets.Buckets(c, np.zeros(n), steps)
        made.compile()
        for _ in range(2):
            for step in range(steps):
                samples = counts[comm.rank][step]
                made.grads[:] = gradient(comm.rank, step, n)
                assert made.add(samples) == (step + 1 == steps)
            made.launch(samples)
            made.reduce()
            np.testing.assert_array_equal(made.sum, summed(comm.size, steps, n, counts))
            made.clear()
        made.free()


@pytest.mark.ranks(2)
def test_buckets_go_as_their_ranges_become_final(comm):
    n, before = 5000, buckets.BUCKET_BYTES
    os.environ["PSGD_PROGRESS"] = "1"
    buckets.BUCKET_BYTES = 8 << 10
    try:
        with Communicator(comm) as c:
            made = buckets.Buckets(c, np.zeros(n), 1)
            if not made.overlaps:
                pytest.skip("this MPI grants no MPI_THREAD_MULTIPLE")
            made.compile()
            ready = made.overlap(4)
            made.grads[:] = gradient(comm.rank, 0, n)
            for stop in range(n, 0, -700):
                ready(range(max(0, stop - 700), stop))
            assert made.add(4)
            made.launch(4)
            made.wait()
            np.testing.assert_array_equal(made.sum, summed(2, 1, n, [[4], [4]]))
            made.clear()
            made.free()
    finally:
        buckets.BUCKET_BYTES = before
        del os.environ["PSGD_PROGRESS"]


@pytest.mark.ranks(2)
def test_ranges_and_samples_that_do_not_fit_are_refused(comm):
    n, before = 5000, buckets.BUCKET_BYTES
    os.environ["PSGD_PROGRESS"] = "1"
    buckets.BUCKET_BYTES = 8 << 10
    try:
        with Communicator(comm) as c:
            made = buckets.Buckets(c, np.zeros(n), 1)
            if not made.overlaps:
                pytest.skip("this MPI grants no MPI_THREAD_MULTIPLE")
            assert made.overlap(0) is None
            ready = made.overlap(4)
            with pytest.raises(UsageError, match="expected a range that ends at 5000"):
                ready(range(0, 100))
            ready(range(2000, n))
            with pytest.raises(UsageError, match="a gradient is on its way already"):
                made.overlap(4)
            with pytest.raises(UsageError, match="expected the 4 samples that overlap"):
                made.add(5)
            made.launch(4)
            made.wait()
            made.free()
    finally:
        buckets.BUCKET_BYTES = before
        del os.environ["PSGD_PROGRESS"]
