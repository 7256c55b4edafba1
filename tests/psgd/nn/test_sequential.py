"""Layers one behind the other: names, shapes, first values by place, and whose input's gradient is wanted."""

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn import sequential
from psgd.nn.initialize import Zeros
from psgd.nn.layer import Room
from psgd.nn.linear import Linear
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten

LAYERS = (Flatten(), Linear(5), ReLU(), Linear(4, relu=True), Linear(3), Linear(2, init="he"))


def test_names_shapes_and_first_values():
    steps, output = sequential.fit(LAYERS, (2, 3))
    assert output == (2,)
    assert [step.name for step in steps] == ["flatten1", "linear1", "relu1", "linear2", "linear3", "linear4"]
    assert [step.shape for step in steps] == [(2, 3), (6,), (5,), (5,), (4,), (3,)]
    specs = [spec for step in steps for spec in step.specs]
    assert [spec.name for spec in specs[:2]] == ["linear1.weight", "linear1.bias"]
    assert [spec.initializer.init for spec in specs[::2]] == ["he", "he", "xavier", "he"]
    assert all(spec.initializer == Zeros() for spec in specs[1::2])


def test_shapes_that_do_not_fit():
    with pytest.raises(UsageError, match="at least one axis"):
        sequential.fit([Linear(3)], ())


@pytest.mark.parametrize("wants_dx", [False, True])
def test_whose_input_gradient_is_wanted(wants_dx):
    steps, _ = sequential.fit(LAYERS, (2, 3))
    assert sequential.first_with_parameters(steps) == 1
    states = sequential.allocate(steps, Room(np, 4, np.dtype(np.float32), (2, 3), wants_dx))
    assert (states[1].dx is None) is not wants_dx
    assert all(states[i].dx.shape == (4, *steps[i].shape) for i in (3, 4, 5))


def test_none_has_parameters():
    steps, _ = sequential.fit([Flatten(), ReLU()], (2, 3))
    assert sequential.first_with_parameters(steps) == 2
