"""Batches on a GPU, resident and streamed, are the host's."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.data.batches import Batches
from psgd.data.dataset import split
from psgd.data.normalization import measure

pytestmark = pytest.mark.gpu
BATCH = 8


def made():
    rng = np.random.default_rng(1)
    part = split(rng.integers(0, 256, (100, 3, 4)).astype(np.uint8), np.arange(100) % 7, "X", "Y")
    return part, measure(part)


@pytest.mark.parametrize("kind", ["Resident", "Streamed"])
def test_batches_are_the_hosts(kind):
    xp = cupy()
    from psgd.backend import samples

    part, statistics = made()
    steps = xp.zeros(1, np.int64)
    source = (
        samples.Resident(part, statistics, BATCH, steps)
        if kind == "Resident"
        else samples.Streamed(part, statistics, BATCH)
    )
    host, rng = Batches(part, statistics, BATCH), np.random.default_rng(2)
    x, y = xp.empty((BATCH, 12), np.float32), xp.empty(BATCH, np.int64)
    assert source.samples == 100
    for step in range(600):  # more than the ring of indices has slots
        rows = rng.integers(0, 100, BATCH if step % 5 else 3)
        source.choose(rows)
        there, labels = source.write(len(rows), x, y)
        if step % 50 == 0:
            wanted, numbers = host.fetch(rows)
            np.testing.assert_array_equal(there.get(), wanted.reshape(len(rows), -1))
            np.testing.assert_array_equal(labels.get(), numbers)
        steps += 1
        source.used()
    there, labels = source.ordered(40, 45, x, y)
    wanted, numbers = host.ordered(40, 45)
    np.testing.assert_array_equal(there.get(), wanted.reshape(5, -1))
    np.testing.assert_array_equal(labels.get(), numbers)


def test_what_fits():
    cupy()
    from psgd.backend import samples

    assert samples.fits(made()[0])
