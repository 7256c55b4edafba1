"""Batches on a GPU, from data that lies there and from the host, against those of the host."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.data import load
from psgd.data.batches import Batches
from psgd.data.normalization import measure

pytestmark = pytest.mark.gpu
BATCH = 8


@pytest.mark.parametrize("kind", ["Resident", "Streamed"])
def test_batches_are_those_of_the_host(kind):
    xp = cupy()
    from psgd.backend import samples

    split = load("digits").train
    statistics = measure(split)
    steps = xp.zeros(1, np.int64)
    more = (steps,) if kind == "Resident" else ()
    source = getattr(samples, kind)(split, statistics, BATCH, *more)
    x, y = xp.empty((BATCH, split.x[0].size), np.float32), xp.empty(BATCH, np.int64)
    host, random = Batches(split, statistics, BATCH), np.random.default_rng(0)
    for step in range(300):  # more than the ring of indices has slots
        indices = random.integers(0, split.samples, BATCH if step % 5 else 3)
        source.choose(indices)
        got, labels = source.write(len(indices), x, y)
        steps += 1
        source.used()
        wanted, their_labels = host.fetch(indices)
        assert np.array_equal(labels.get(), their_labels)
        np.testing.assert_allclose(got.get(), wanted.reshape(len(indices), -1), rtol=1e-6)
    got, labels = source.ordered(5, 9, x, y)
    assert np.array_equal(labels.get(), split.y[5:9])


def test_what_fits():
    cupy()
    from psgd.backend import samples

    assert samples.fits(load("digits").train)
