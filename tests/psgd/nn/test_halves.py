"""Backward in two halves: the bits of one, for every layer, with several microbatches between the halves."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layers.attention import Attention
from psgd.nn.layers.embedding import Embedding, Positions, Unembedding
from psgd.nn.layers.gelu import GELU
from psgd.nn.layers.layernorm import LayerNorm
from psgd.nn.layers.lstm import LSTM
from psgd.nn.layers.meanpool import MeanPool
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten, RowTokens
from psgd.nn.residual import Residual
from psgd.nn.stage import Stage

BLOCK = (
    Residual((LayerNorm(), Attention(2))),
    Residual((LayerNorm(), Linear(12), GELU(), Linear(6, relu=True), Linear(4))),
)
CASES = {
    "dense": ((Linear(9, relu=True), Linear(5), ReLU(), Linear(4)), (6,)),
    "block": ((*BLOCK, *BLOCK, LayerNorm(), Unembedding(7, tied=None)), (5, 4)),
    "tied": ((Embedding(7, 4), Positions(), *BLOCK, Unembedding(7, tied="embedding1.weight")), (5,)),
    "convolution": ((ChannelsLast(), Conv2D(4, 3), ReLU(), MaxPool(2), RowTokens(), Linear(3), MeanPool()), (2, 6, 6)),
    "lstm": ((LSTM(6), Linear(3)), (4, 5)),
    "none": ((Flatten(), ReLU()), (3, 2)),
}
N = 3


class Run:
    def __init__(self, case, wants_dx, xp=np):
        layers, shape = CASES[case]
        rng = np.random.default_rng(2)
        self.stage, self.wants_dx = Stage(layers, shape), wants_dx
        self.params = xp.asarray(self.stage.init(3))
        self.grads = xp.full_like(self.params, np.nan)
        self.stage.bind(self.params, self.grads)
        draw = (
            (lambda: rng.integers(0, 7, (N, *shape))) if case == "tied" else (lambda: rng.standard_normal((N, *shape)))
        )
        self.xs = [xp.asarray(draw(), np.float32) for _ in range(4)]
        self.dys = [xp.asarray(rng.standard_normal((N, *self.stage.output_shape)), np.float32) for _ in range(4)]
        self.contexts = [self.stage.context(N, wants_dx) for _ in range(4)]

    def forward(self, k):
        self.stage.forward(self.contexts[k], self.xs[k])

    def whole(self):
        ready, dxs = [], []
        for k in range(4):
            self.forward(k)
            dx = self.stage.backward(
                self.contexts[k], self.dys[k].copy(), ready.append if k == 3 else None, accumulate=k > 0
            )
            dxs.append(dx if dx is None else dx.copy())
        return dxs, ready, self.grads.copy()

    def halves(self):
        """X of 0, 1, 2; W of 0; X of 3; W of 1, 2, 3."""
        ready, dxs = [], []
        for k in range(4):
            self.forward(k)
        for kind, k in [("X", 0), ("X", 1), ("X", 2), ("W", 0), ("X", 3), ("W", 1), ("W", 2), ("W", 3)]:
            if kind == "X":
                dx = self.stage.backward_input(self.contexts[k], self.dys[k].copy(), accumulate=k > 0)
                dxs.append(dx if dx is None else dx.copy())
            else:
                self.stage.backward_weights(self.contexts[k], ready.append if k == 3 else None, accumulate=k > 0)
        return dxs, ready, self.grads.copy()


@pytest.mark.parametrize("wants_dx", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["host", "gpu"])
def test_two_halves_have_the_bits_of_one(case, wants_dx, on_gpu):
    xp = cupy() if on_gpu else np
    if case == "tied":
        wants_dx = False
    whole, halves = Run(case, wants_dx, xp).whole(), Run(case, wants_dx, xp).halves()
    for one, other in zip(whole[0], halves[0], strict=True):
        assert (one is None) == (other is None) == (not wants_dx)
        assert one is None or bool((one == other).all())
    assert whole[1] == halves[1]
    assert bool((whole[2] == halves[2]).all())


def test_linear_layers_leave_their_products():
    stage = Stage(*CASES["block"])
    late = {stage.layout.parameters[i].name for i, _ in enumerate(stage.layout.parameters)}
    run = Run("block", True)
    run.forward(0)
    run.grads[:] = np.nan
    run.stage.backward_input(run.contexts[0], run.dys[0].copy())
    views = run.stage.layout.views(run.grads)
    left = {name for name in late if np.isnan(views[name]).all()}
    assert left == {n for n in late if n.endswith(".weight") and "layernorm" not in n}
    run.stage.backward_weights(run.contexts[0])
    assert np.isfinite(run.grads).all()


def test_refusals():
    run = Run("dense", True)
    run.forward(0)
    with pytest.raises(UsageError, match="backward_weights: needs backward_input"):
        run.stage.backward_weights(run.contexts[0])
    run.stage.backward_input(run.contexts[0], run.dys[0])
    with pytest.raises(UsageError, match="backward: needs a forward pass"):
        run.stage.backward_input(run.contexts[0], run.dys[0])
    run.forward(0)  # what was kept is lost
    with pytest.raises(UsageError, match="backward_weights: needs backward_input"):
        run.stage.backward_weights(run.contexts[0])
