"""Initialization: the closed forms' moments, and the same numbers everywhere."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psgd
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.nn.relu import ReLU

ROOT = Path(psgd.__path__[0]).parent


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_initialization_has_the_closed_forms_moments(dtype):
    model = build("cnn", (1, 28, 28), 10, dtype)
    views = model.layout.views(model.init(5))
    expected = {  # He: 2 / fan_in; Xavier: 2 / (fan_in + fan_out)
        "conv1": 2 / 9,
        "conv2": 2 / (9 * 16),
        "linear1": 2 / (7 * 7 * 32),
        "linear2": 2 / (256 + 10),
    }
    for name, variance in expected.items():
        weight = views[f"{name}.weight"].astype(np.float64)
        assert not views[f"{name}.bias"].any()
        assert np.abs(weight).max() <= np.sqrt(3 * variance) * (1 + 1e-6)
        sigma = np.sqrt(0.8 / weight.size)  # of a uniform sample's variance, relative
        assert (weight**2).mean() == pytest.approx(variance, rel=5 * sigma)
        assert abs(weight.mean()) < 5 * np.sqrt(variance / weight.size)
    assert len(np.unique(views["linear1.weight"])) > 0.9 * 2**17


def test_initialization_by_argument_place_and_seed():
    def largest(layers):
        model = Model(layers, (50,))
        return [np.abs(v).max() for k, v in model.layout.views(model.init(0)).items() if "weight" in k]

    he, xavier = np.sqrt(6 / 50), np.sqrt(6 / 150)
    for layers, a in (
        ([Linear(100, relu=True)], he),
        ([Linear(100), ReLU()], he),
        ([Linear(100)], xavier),
        ([Linear(100, init="he")], he),
        ([Linear(100, relu=True, init="xavier")], xavier),
        ([Linear(100), Linear(3, relu=True)], xavier),
    ):
        assert largest(layers)[0] == pytest.approx(a, rel=0.01)
    model = build("mlp", (50,), 10)
    assert (model.init(1) != model.init(2)).any()
    np.testing.assert_array_equal(model.init(1), model.init(1))
    np.testing.assert_array_equal(build("mlp", (50,), 10, np.float64).init(1).astype(np.float32), model.init(1))


def test_initialization_is_the_same_in_another_process():
    code = (
        "import hashlib; from psgd.nn.models import build; "
        "print(hashlib.sha256(build('cnn', (1, 8, 8), 10).init(3).tobytes()).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    ours = hashlib.sha256(build("cnn", (1, 8, 8), 10).init(3).tobytes()).hexdigest()
    assert run.stdout.strip() == ours
