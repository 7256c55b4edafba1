"""Keyed randomness: the same key gives the same numbers, every other key gives others."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError
from psgd.runtime.rng import bits, generator

ROOT = Path(psgd.__path__[0]).parent


def draw(seed, *key):
    return tuple(generator(seed, *key).integers(0, 2**63, 4).tolist())


def test_same_key_same_numbers_whatever_was_drawn_between():
    first = generator(3, 10, 2, 1).random(5)
    generator(3, 10, 2, 0).random(1000)
    np.testing.assert_array_equal(generator(3, 10, 2, 1).random(5), first)


def test_all_keys_differ():
    parts = [0, 1, 2**32, 2**32 + 1, 2**64 - 1, "init", "order"]
    keys = [key for length in range(4) for key in itertools.product(parts, repeat=length)]
    draws = {draw(seed, *key) for seed in (0, 1, 2**32) for key in keys}
    assert len(draws) == 3 * len(keys)


def test_bits_are_64_and_by_key():
    found = {bits(3, "step", epoch, step) for epoch in range(20) for step in range(20)}
    assert len(found) == 400 and max(found).bit_length() == 64 and min(found) >= 0
    assert bits(3, "step", 1, 2) in found and bits(4, "step", 1, 2) not in found


def test_same_in_another_process():
    code = "from psgd.runtime.rng import generator; print(generator(7, 'init', 3).integers(0, 2**63, 4).tolist())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert run.stdout.strip() == str(list(draw(7, "init", 3)))


def test_numpy_integers_are_integers():
    assert draw(np.int64(5), np.uint8(2)) == draw(5, 2)


@pytest.mark.parametrize(("seed", "key"), [(-1, ()), (2**64, ()), (0, (-1,)), (0, (1.0,)), (0, (None,))])
def test_wrong_keys_are_refused(seed, key):
    with pytest.raises(UsageError, match="random generator"):
        generator(seed, *key)


def test_neighbouring_keys_are_uncorrelated():
    x = np.stack([generator(0, step).standard_normal(10_000) for step in range(8)])
    correlation = np.corrcoef(x) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(10_000)
