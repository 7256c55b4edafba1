"""Buckets whose round may be made again: the same sums as others', and a failed call ends the round and no more."""

import contextlib
import os

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.kernels.errors import PeerLostError
from psgd.strategies import buckets
from psgd.strategies.buckets import Buckets
from psgd.strategies.surviving_buckets import SurvivingBuckets

N = 40_000


@contextlib.contextmanager
def progress(threads):
    """With or without a progress thread, and with buckets of 16384 elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "BUCKET_BYTES", 64 << 10)
        patch.setitem(os.environ, "PSGD_PROGRESS", threads)
        yield


class Lost:
    """A call that cannot be started any more."""

    def Start(self):
        raise PeerLostError("dead")


def step(made, samples, seed):
    """One gradient, on its way to the sum."""
    made.grads[:] = np.random.default_rng(seed).standard_normal(N, np.float32)
    ready = made.overlap(samples)
    if ready is not None:
        ready(range(N // 2, N))
        ready(range(N // 2))
    assert made.add(samples)


def reduced(made, samples):
    made.launch(samples)
    if made.early:
        made.wait()
    else:
        made.reduce()
    return made.sum.copy()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("threads", ["1", "0"])
def test_sums_are_those_of_other_buckets_also_when_made_again_by_others(comm, threads):
    with progress(threads), Communicator(comm) as workers, Communicator(comm) as again:
        plain, made = (kind(workers, np.zeros(N, np.float32), 1) for kind in (Buckets, SurvivingBuckets))
        assert made.overlaps == plain.overlaps == (threads == "1")
        made.compile()
        # As it is, by a weight, and on one rank without samples.
        for turn, samples in enumerate([4, 4, 12, 4 * comm.rank]):
            plain.unit = made.unit = 4 if turn else 1
            seed = 10 * turn + 100 * comm.rank
            step(plain, samples, seed)
            step(made, samples, seed)
            expected = reduced(plain, samples)
            np.testing.assert_array_equal(reduced(made, samples), expected)
            if turn == 2:
                made.settle()
                made.regroup(again)
                made.grads[:] = np.random.default_rng(seed).standard_normal(N, np.float32)
                np.testing.assert_array_equal(reduced(made, samples), expected)
            plain.clear()
            made.clear()
        made.free()
        plain.free()


@pytest.mark.ranks(2)
def test_a_call_that_cannot_be_started_ends_the_round_and_not_backward(comm):
    with progress("1"), Communicator(comm) as workers, Communicator(comm) as again:
        made = SurvivingBuckets(workers, np.zeros(N, np.float32), 1)
        kept, made._calls[1] = made._calls[1], Lost()
        step(made, 1, comm.rank)
        made.launch(1)
        with pytest.raises(PeerLostError, match="dead"):
            made.wait()
        made.settle()
        made._calls[1] = kept
        made.free()
        made.regroup(again)
        step(made, 1, comm.rank)
        made.launch(1)
        made.wait()
        both = [np.random.default_rng(rank).standard_normal(N, np.float32) for rank in range(2)]
        np.testing.assert_array_equal(made.sum, both[0] + both[1])
        made.free()
