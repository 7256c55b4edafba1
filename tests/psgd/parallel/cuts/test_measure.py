import time
from dataclasses import dataclass

import numpy as np

from psgd.nn.layer import Layer, OutputState
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.parallel.cuts.measure import measure
from psgd.parallel.cuts.partition import partition


@dataclass(frozen=True)
class Sleeps(Layer[OutputState]):
    """Gives what it gets, after a while."""

    seconds: float
    name = "sleeps"

    def output_shape(self, shape):
        return shape

    def allocate(self, room):
        return OutputState(room.empty(*room.shape), room.dx())

    def forward(self, state, x, params):
        time.sleep(self.seconds)
        state.y[: len(x)] = x
        return state.y[: len(x)]

    def backward(self, state, dy, params, grads):
        time.sleep(2 * self.seconds)
        return dy


def test_times_are_of_both_passes_and_the_cut_follows_them():
    layers = [Linear(4), Sleeps(0.004), Linear(4), Sleeps(0.001), Sleeps(0.001), Sleeps(0.001), Linear(3)]
    costs = measure(Model(layers, (4,)), np.zeros((2, 4), np.float32), repeats=3)
    slept = [costs[1].seconds, *(each.seconds for each in costs[3:6])]
    assert slept[0] >= 0.012 and min(slept[1:]) >= 0.003 and slept[0] > max(slept[1:])
    (cut,) = partition(costs, 2)
    assert cut in (2, 3)  # the long one apart from the three short ones


def test_bytes_are_those_of_a_context_and_of_the_vectors():
    model = build("cnn", (1, 12, 12), 10, hidden=32)
    x, adam = np.zeros((6, 1, 12, 12), np.float32), 2
    costs = measure(model, x, state_vectors=adam, repeats=1)
    parameters = sum(parameter.size for parameter in model.layout.parameters)
    assert sum(each.held for each in costs) == 4 * (2 + adam) * parameters
    assert [each.held > 0 for each in costs] == [bool(layer.weights(s)) for layer, s in placed(model)]
    state = model.context(6).states[1]  # the first convolution
    arrays = [each for each in vars(state).values() if isinstance(each, np.ndarray)]
    assert costs[1].alive == sum(each.nbytes for each in arrays)


def placed(model):
    shape = model.input_shape
    for layer in model.layers:
        yield layer, shape
        shape = layer.output_shape(shape)


def test_nothing_of_the_model_changes():
    model = build("mlp", (1, 4, 4), 3, hidden=8)
    params = model.init(1)
    grads = np.full_like(params, 7)
    model.bind(params, grads)
    before = params.copy()
    measure(model, np.zeros((2, 16), np.float32), repeats=1)
    assert np.array_equal(params, before) and (grads == 7).all()
