"""The order of an epoch and its shares."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psgd import UsageError
from psgd.data.sampler import Sampler, order


def epoch_of(samples, workers, batch, seed=0, epoch=0):
    """All batches, as [step][worker]."""
    samplers = [Sampler(samples, workers, worker, batch, seed) for worker in range(workers)]
    assert len({sampler.steps for sampler in samplers}) == 1
    return [[sampler.batch(epoch, step) for sampler in samplers] for step in range(samplers[0].steps)]


@settings(max_examples=150, deadline=None)
@given(samples=st.integers(1, 300), workers=st.integers(1, 8), batch=st.integers(1, 40), epoch=st.integers(0, 5))
@example(samples=1003, workers=4, batch=10, epoch=0)
@example(samples=3, workers=4, batch=1, epoch=0)
@example(samples=3, workers=4, batch=10, epoch=1)
@example(samples=1, workers=8, batch=1, epoch=0)
def test_every_sample_once_and_the_union_is_one_large_batch(samples, workers, batch, epoch):
    steps = epoch_of(samples, workers, batch, epoch=epoch)
    alone = epoch_of(samples, 1, batch * workers, epoch=epoch)
    assert len(steps) == len(alone) == -(-samples // (batch * workers))
    for step, (union,) in zip(steps, alone, strict=True):
        assert np.array_equal(np.sort(np.concatenate(step)), np.sort(union))
        assert all(len(part) <= batch for part in step)
    seen = np.concatenate([part for step in steps for part in step])
    assert np.array_equal(np.sort(seen), np.arange(samples))


def test_worker_takes_every_nth_of_the_order():
    whole = order(23, 7, 2)
    steps = epoch_of(23, 3, 4, seed=7, epoch=2)
    for worker in range(3):
        np.testing.assert_array_equal(np.concatenate([step[worker] for step in steps]), whole[worker::3])


def test_steps_of_the_known_failures():
    assert Sampler(1003, 4, 3, 10, 0).steps == 26
    assert [len(part) for part in epoch_of(1003, 4, 10)[-1]] == [1, 1, 1, 0]
    assert [[len(part) for part in step] for step in epoch_of(3, 4, 10)] == [[1, 1, 1, 0]]


def test_order_depends_on_seed_and_epoch_only():
    def drawn(seed, epoch):
        return Sampler(50, 1, 0, 50, seed).batch(epoch, 0)

    np.testing.assert_array_equal(drawn(3, 4), drawn(3, 4))
    assert not np.array_equal(drawn(3, 4), drawn(3, 5))
    assert not np.array_equal(drawn(3, 4), drawn(4, 4))
    assert not np.array_equal(drawn(3, 4), drawn(4, 3))


@pytest.mark.parametrize(("samples", "workers", "batch"), [(41, 3, 4), (10, 4, 3), (5, 7, 2)])
def test_what_is_drawn_in_so_many_steps(samples, workers, batch):
    shares = [Sampler(samples, workers, worker, batch, 0) for worker in range(workers)]
    drawn = [0] * workers
    for steps in range(3 * shares[0].steps):
        assert [share.drawn(steps) for share in shares] == drawn
        behind = shares[0].steps_behind(sum(drawn))
        # Steps in which nobody draws, at the end of an epoch, are not told apart.
        assert behind == steps or sum(share.drawn(behind) for share in shares) == sum(drawn)
        for worker, share in enumerate(shares):
            drawn[worker] += len(share.batch(*divmod(steps, share.steps)))


def test_an_epoch_in_the_middle_needs_no_history():
    forward = Sampler(50, 2, 1, 8, 0)
    for epoch in range(3):
        for step in range(forward.steps):
            last = forward.batch(epoch, step)
    np.testing.assert_array_equal(last, Sampler(50, 2, 1, 8, 0).batch(2, forward.steps - 1))


def test_every_place_of_the_order_is_reached_by_every_sample():
    counts = np.zeros((6, 6), int)
    for epoch in range(3000):
        counts[np.arange(6), order(6, 0, epoch)] += 1
    # binomial, 3000 draws at 1/6: standard deviation 20.4; 36 cells within five of them
    assert np.abs(counts - 500).max() < 102


def test_batches_are_views_drawn_once(monkeypatch):
    draws = []

    def counted(*args):
        draws.append(args)
        return order(*args)

    monkeypatch.setattr("psgd.data.sampler.order", counted)
    sampler = Sampler(1000, 2, 0, 10, 0)
    batches = [sampler.batch(0, step) for step in range(sampler.steps)]
    assert draws == [(1000, 0, 0)]
    assert all(batch.base is batches[0].base is not None for batch in batches)
    assert all(batch.dtype == np.int64 and batch.flags.c_contiguous for batch in batches)
    kept = batches[0].copy()
    sampler.batch(1, 0)
    np.testing.assert_array_equal(batches[0], kept)


@pytest.mark.parametrize(
    "arguments", [(0, 1, 0, 1, 0), (5, 0, 0, 1, 0), (5, 2, 2, 1, 0), (5, 2, -1, 1, 0), (5, 2, 0, 0, 0)]
)
def test_wrong_arguments(arguments):
    with pytest.raises(UsageError, match="Sampler: expected"):
        Sampler(*arguments)


@pytest.mark.parametrize("step", [-1, 3])
def test_steps_outside_the_epoch(step):
    with pytest.raises(IndexError, match="3 steps"):
        Sampler(25, 1, 0, 10, 0).batch(0, step)
