"""Randomness by key: who draws, and in which order, does not change what is drawn."""

import hashlib
import operator

import numpy as np

from psgd.kernels.errors import UsageError


def _word(value: int | str) -> int:
    """One key as 64 bits: an integer is itself, a text its hash."""
    if isinstance(value, str):
        return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**64:
        raise UsageError(f"random generator: seed and keys are texts or integers in 0..2**64-1, got {value!r}")
    return number


def bits(seed: int, *key: int | str) -> int:
    """Returns 64 random bits for `key`, as `generator` draws them: a key for other generators.

    Raises:
        UsageError: as `generator`.
    """
    return int(generator(seed, *key).integers(2**64, dtype=np.uint64))


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Returns a fresh generator for `key`, independent of the generators of all other keys.

    The same (seed, key) gives the same numbers on every rank, in every run and in whatever order the keys are
    used: `generator(seed, step, microbatch, layer)` needs no state to be saved or sent. Takes some 20 us.

    Args:
        seed: the run's seed, 0..2**64-1.
        key: any number of integers (0..2**64-1) or texts; their order and number matter.

    Raises:
        UsageError: a negative, too large or otherwise wrong seed or key.
    """
    # Two 32-bit words for each key, whatever its value: (2**32,) and (0, 1) must not meet.
    words = [half for value in key for half in divmod(_word(value), 2**32)]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(_word(seed), spawn_key=words)))
