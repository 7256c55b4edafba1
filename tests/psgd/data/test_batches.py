"""Gathered, normalized batches against float64 NumPy."""

import tracemalloc

import numpy as np
import pytest

from psgd import UsageError
from psgd.data.batches import Batches
from psgd.data.dataset import split
from psgd.data.normalization import Statistics, measure
from psgd.data.sampler import Sampler

RNG = np.random.default_rng(5)
SHAPES = [(7,), (3, 5), (2, 3, 5), (65,), (1, 28, 28)]


def samples(dtype, shape, n=50):
    x = RNG.integers(0, 256, (n, *shape)).astype(dtype)
    return split(x, np.arange(n) % 11, "X", "Y")


def oracle(part, statistics, rows, dtype):
    return ((part.x[rows].astype(np.float64) - statistics.mean) / statistics.std).astype(dtype)


def close(got, expected):
    """float32: two roundings of values up to some 4; float64: a few units in the last place."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 if got.dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("source", ["u1", "f4", "f8"])
@pytest.mark.parametrize("target", ["f4", "f8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_fetch_and_ordered(source, target, shape):
    part = samples(source, shape)
    statistics = measure(part)
    batches = Batches(part, statistics, 16, target)
    rows = RNG.permutation(50)[:16]
    x, y = batches.fetch(rows)
    assert x.shape == (16, *part.x.shape[1:])
    assert x.dtype == target
    assert x.flags.c_contiguous
    assert y.dtype == np.int64
    close(x, oracle(part, statistics, rows, target))
    np.testing.assert_array_equal(y, rows % 11)
    x, y = batches.ordered(31, 44)
    close(x, oracle(part, statistics, np.arange(31, 44), target))
    np.testing.assert_array_equal(y, np.arange(31, 44) % 11)
    assert x.shape == (13, *part.x.shape[1:])


def test_fetch_and_ordered_agree_bit_for_bit():
    part = samples("u1", (28, 28))
    batches = Batches(part, measure(part), 20)
    gathered = batches.fetch(np.arange(10, 30))[0].copy()
    np.testing.assert_array_equal(gathered, batches.ordered(10, 30)[0])


def test_training_part_gets_mean_zero_and_variance_one():
    part = samples("u1", (1, 28, 28), 200)
    x, _ = Batches(part, measure(part), 200).ordered(0, 200)
    assert x.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert x.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_large_offset_keeps_its_digits():
    x = (1e4 + RNG.normal(0, 1e-2, (40, 6))).astype(np.float32)
    part = split(x, np.zeros(40, int), "X", "Y")
    statistics = measure(part)
    close(Batches(part, statistics, 40).ordered(0, 40)[0], oracle(part, statistics, np.arange(40), "f4"))


@pytest.mark.parametrize("source", ["u1", "f4", "f8"])
def test_constant_samples_become_zero(source):
    part = split(np.full((5, 4), 7, source), np.zeros(5, int), "X", "Y")
    x, _ = Batches(part, measure(part), 5).ordered(0, 5)
    assert not x.any()


def test_empty_repeated_and_single_indices():
    part = samples("u1", (3, 5))
    statistics = measure(part)
    batches = Batches(part, statistics, 4)
    x, y = batches.fetch(np.empty(0, np.int64))
    assert x.shape == (0, 1, 3, 5)
    assert y.shape == (0,)
    rows = np.array([49, 0, 49, 49])
    close(batches.fetch(rows)[0], oracle(part, statistics, rows, "f4"))
    assert batches.ordered(50, 50)[0].shape == (0, 1, 3, 5)


def test_buffers_are_used_again_and_only_the_rows_asked_for_are_written():
    part = samples("u1", (9,))
    batches = Batches(part, Statistics(0, 1), 4)
    first, labels = batches.fetch(np.array([1, 2, 3, 4]))
    kept = first.copy(), labels.copy()
    second, _ = batches.fetch(np.array([5]))
    assert np.shares_memory(first, second)
    np.testing.assert_array_equal(first[1:], kept[0][1:])
    np.testing.assert_array_equal(labels[1:], kept[1][1:])


@pytest.mark.parametrize("bad", [-1, 50, 2**62, -(2**63)])
def test_index_out_of_range_writes_nothing(bad):
    part = samples("u1", (9,))
    batches = Batches(part, Statistics(0, 1), 4)
    before = batches.fetch(np.array([7, 8]))[0]
    kept = before.copy()
    with pytest.raises(IndexError, match=rf"index {bad} out of range for 50"):
        batches.fetch(np.array([1, bad]))
    np.testing.assert_array_equal(before, kept)


def test_wrong_calls():
    batches = Batches(samples("u1", (9,)), Statistics(0, 1), 4)
    for wrong in (np.arange(5), np.zeros(2, np.int32), np.zeros((2, 1), np.int64), np.zeros(2)):
        with pytest.raises(UsageError, match=r"Batches.fetch: expected"):
            batches.fetch(wrong)
    with pytest.raises(UsageError, match="5 samples asked for"):
        batches.ordered(0, 5)
    for start, stop in ((-1, 2), (3, 2), (48, 51)):
        with pytest.raises(IndexError, match="not a range of 50"):
            batches.ordered(start, stop)
    for size, dtype in ((0, "f4"), (4, "f2"), (4, "i4")):
        with pytest.raises(UsageError, match="Batches: expected"):
            Batches(samples("u1", (9,)), Statistics(0, 1), size, dtype)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u4", "i8", "u8"])
def test_every_integer_dtype_of_labels(dtype):
    x = np.zeros((6, 2), np.uint8)
    batches = Batches(split(x, np.arange(6).astype(dtype), "X", "Y"), Statistics(0, 1), 6)
    np.testing.assert_array_equal(batches.fetch(np.array([5, 0, 3]))[1], [5, 0, 3])
    np.testing.assert_array_equal(batches.ordered(1, 4)[1], [1, 2, 3])


def test_an_epoch_from_a_mapped_file(tmp_path):
    np.save(tmp_path / "x.npy", RNG.normal(size=(103, 12)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.arange(103))
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    part = split(x, y, "X", "Y")
    statistics = measure(part)
    for worker in range(3):
        sampler = Sampler(103, 3, worker, 10, 0)
        batches = Batches(part, statistics, 10)
        for step in range(sampler.steps):
            rows = sampler.batch(0, step)
            got, labels = batches.fetch(rows)
            close(got, oracle(part, statistics, rows, "f4"))
            np.testing.assert_array_equal(labels, rows)


def test_steps_allocate_no_arrays():
    part = samples("u1", (1, 28, 28), 500)
    batches = Batches(part, Statistics(100, 50), 64)
    sampler = Sampler(500, 1, 0, 64, 0)
    batches.fetch(sampler.batch(0, 0))
    tracemalloc.start()
    try:
        for step in range(sampler.steps):
            batches.fetch(sampler.batch(0, step))
            batches.ordered(step, step + 64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000  # views only; one batch is 200,704 bytes
