"""psgd's own models as what a run trains; `test_from_file.py` has refusals and whole runs."""

import numpy as np

from psgd.config import configure
from psgd.data import load
from psgd.data.normalization import validate
from psgd.nn.models import build
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
