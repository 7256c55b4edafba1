"""Passes of layers by graphs: the bits of the same model run by Python, whatever comes in between."""

import numpy as np
import pytest
from harness.fake_gpu import fake_graph

from psgd.nn.gates.gated import gated
from psgd.nn.gates.left_behind import noted, put_back
from psgd.nn.gates.recorded import RecordedPasses
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build


class Silent:
    def enter(self, index, backward):
        pass

    leave = enter


class Graphs:
    """A launcher on the host. A graph runs with what layers kept when it was recorded, and tells them nothing."""

    def __init__(self):
        self.context, self.recorded, self.launched = None, 0, 0

    def _states(self):
        return [each.states for each in self.context.states]

    def _count(self):
        self.launched += 1

    def __call__(self, function):
        self.recorded += 1
        return fake_graph(function, lambda: noted(self._states()), put_back, self._count)


def mlp():
    return Model([Linear(8, relu=True), Dropout(0.5), Linear(7, relu=True), Linear(3)], (6,)), False


def gpt():
    return build("gpt", (5,), 11, tokens=True, layers=2, width=8, heads=2, dropout=0.1), True


class Steps:
    """Takes the same batches by a model as it is, or by a gated one."""

    def __init__(self, model, tokens, graphs=None):
        self.model, self.tokens = model if graphs is None else gated(model, Silent(), graphs), tokens
        self.params = model.init(1)
        self.grads = np.full_like(self.params, np.nan)
        self.model.bind(self.params, self.grads)
        self.ctx = self.model.context(8)
        self.x = np.empty((8, *model.input_shape), np.float32)
        if graphs is not None:
            graphs.context = self.ctx

    def data(self, n, seed):
        rng = np.random.default_rng(seed)
        if self.tokens:
            return rng.integers(0, 11, (n, 5)), rng.integers(0, 11, (n, 5))
        return rng.normal(size=(n, 6)), rng.integers(0, 3, n)

    def step(self, n, seed, accumulate=False):
        x, y = self.data(n, seed)
        self.x[:n] = x
        self.ctx.draw(seed, np.arange(n))
        return self.model.gradient(self.ctx, self.x[:n], y, batch_size=8, accumulate=accumulate), self.grads.copy()

    def passing(self, n, seed):
        """A forward pass that no backward one follows, and which draws nothing."""
        self.x[:n] = self.data(n, seed)[0]
        return self.model.logits(self.ctx, self.x[:n]).copy()


@pytest.mark.parametrize("make", [mlp, gpt])
@pytest.mark.parametrize(
    "plan", ["8 8 8 8", "8 8 5 8 5 5 8", "8 8 8f 8 5f 8 8f 5", "4 4+ 4 4+ 4 4+ 8 4 4+", "8 8 4 8 4+ 8"]
)
def test_bits(make, plan):
    graphs = Graphs()
    plain, recorded = Steps(*make()), Steps(*make(), graphs)
    for turn, word in enumerate(plan.split()):
        n = int(word[0])
        if word.endswith("f"):
            np.testing.assert_array_equal(plain.passing(n, turn), recorded.passing(n, turn))
            continue
        expected, got = (each.step(n, turn, word.endswith("+")) for each in (plain, recorded))
        assert expected[0] == got[0]
        np.testing.assert_array_equal(expected[1], got[1])
        for each in (plain, recorded):
            each.params -= np.float32(0.1) * each.grads
    assert graphs.launched >= graphs.recorded > 0


def test_each_pass_is_recorded_once_for_its_place():
    graphs = Graphs()
    steps = Steps(*mlp(), graphs)
    for turn in range(5):
        steps.step(8, turn)
    assert (graphs.recorded, graphs.launched) == (8, 4 * 8)  # of four layers, both ways; the first step is Python's
    steps.grads = np.empty_like(steps.grads)  # elsewhere: backward of layers with parameters is another pass
    steps.model.bind(steps.params, steps.grads)
    for turn in range(2):
        steps.step(8, turn)
    assert graphs.recorded == 8 + 3


def test_only_training_is_recorded():
    graphs = Graphs()
    model = gated(mlp()[0], Silent(), graphs)
    model.bind(model.init(1))
    assert not any(isinstance(each, RecordedPasses) for each in model.context(4, trains=False).states)
    assert all(isinstance(each, RecordedPasses) for each in model.context(4).states)
