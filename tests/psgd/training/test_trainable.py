"""psgd's own models as what a run trains; `test_from_file.py` has refusals and whole runs."""

import numpy as np
import pytest

from psgd.config import configure
from psgd.data import load
from psgd.data.normalization import validate
from psgd.kernels.errors import UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.nn.reshape import Flatten
from psgd.training.trainable import OwnModel


def test_a_worker_starts_at_the_seed_and_the_weights_have_their_names(tmp_path):
    digits = load("digits")
    inner = build("softmax", digits.sample_shape, digits.classes)
    model, config = OwnModel(inner), configure(seed=4, batch_size=5)
    vector = model.vector(config, serves=False)
    np.testing.assert_array_equal(vector, inner.init(4))
    assert model.vector(config, serves=True).shape == vector.shape
    assert model.connected(vector) is vector
    grads = np.ones_like(vector)
    backend = model.backend(config, digits, validate(digits))
    backend.bind(vector, grads)
    model.begin(4, 0, 0, 0)
    assert backend.gradient(np.arange(5)) > 0
    assert np.any(grads != 1)
    model.save(tmp_path / "w.npz", vector)
    with np.load(tmp_path / "w.npz") as found:
        assert found.files == [parameter.name for parameter in model.layout.parameters]


def test_what_is_dropped_depends_on_the_step_and_the_sample_and_not_on_the_batch():
    digits = load("digits")
    inner = Model([Flatten(), Dropout(0.4), Linear(digits.classes)], digits.sample_shape)
    params, statistics = inner.init(0), validate(digits)

    def trained(steps, *batches):
        """The gradient of the mean over all batches, at the last of these steps."""
        model, total = OwnModel(inner), np.zeros_like(params)
        backend = model.backend(configure(batch_size=6), digits, statistics)
        backend.prepare(params)
        for batch in batches:
            grads = np.empty_like(params)
            backend.bind(params, grads)
            for worker, (epoch, step) in enumerate(steps):
                model.begin(1, worker, epoch, step)
            backend.gradient(np.array(batch))
            total += grads * (len(batch) / 6)
        return total, backend.evaluate(0, 1)

    whole, evaluated = trained([(0, 3)], [5, 0, 9, 700, 2, 4])
    again, _ = trained([(1, 3), (0, 0), (0, 3)], [4, 2], [0, 5, 700, 9])
    np.testing.assert_allclose(again, whole, rtol=1e-4, atol=1e-7)
    other, same = trained([(0, 4)], [5, 0, 9, 700, 2, 4])
    assert np.abs(other - whole).max() > 1e-3 * np.abs(whole).max()
    assert evaluated == same


def test_a_step_that_is_not_begun_draws_nothing_and_is_refused():
    digits = load("digits")
    inner = Model([Flatten(), Dropout(0.4), Linear(digits.classes)], digits.sample_shape)
    backend = OwnModel(inner).backend(configure(batch_size=6), digits, validate(digits))
    params = inner.init(0)
    backend.bind(params, np.empty_like(params))
    with pytest.raises(UsageError, match=r"needs ctx\.draw"):
        backend.gradient(np.arange(5))
