"""Causal attention: against PyTorch's own module by its own names, a part of the heads, and no look ahead."""

import numpy as np
import pytest
from harness.layers import Run

from psgd.nn.layers.attention import Attention, Heads
from psgd.nn.stage import Stage


def test_the_weights_are_those_of_pytorchs_module():
    torch = pytest.importorskip("torch")
    stage = Stage([Attention(2)], (5, 6), np.float64)
    vector = np.random.default_rng(0).standard_normal(stage.layout.size)
    for gap in stage.layout.padding:
        vector[gap.start : gap.stop] = 0
    stage.bind(vector)
    x = np.random.default_rng(1).standard_normal((3, 5, 6))
    weights = {name: torch.tensor(a) for name, a in stage.layout.for_torch(vector).items()}
    module = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
    names = {"in_proj_weight": "qkv.weight", "in_proj_bias": "qkv.bias"}
    names |= {"out_proj.weight": "out.weight", "out_proj.bias": "out.bias"}
    module.load_state_dict({theirs: weights[f"attention1.{ours}"] for theirs, ours in names.items()})
    there, mask = torch.tensor(x), torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    expected, _ = module(there, there, there, attn_mask=mask, is_causal=True)
    y = stage.forward(stage.context(3), x)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_a_part_of_the_heads_is_a_part_of_the_columns():
    whole, part = Run(Heads(4), (5, 24)), Run(Heads(3), (5, 18))
    part.x, part.dy = np.ascontiguousarray(whole.x[..., 6:]), np.ascontiguousarray(whole.dy[..., 2:])
    (y, dx), (some, dsome) = whole.backward(), part.backward()
    np.testing.assert_array_equal(some, y[..., 2:])
    np.testing.assert_array_equal(dsome, dx[..., 6:])


@pytest.mark.parametrize("layer", [Heads(2), Attention(2)], ids=str)
def test_no_token_sees_a_later_one(layer):
    run = Run(layer, (5, 6))
    before = run.forward()
    run.x[:, 3:] = np.random.default_rng(9).standard_normal((3, 2, 6))
    after = run.forward()
    np.testing.assert_array_equal(after[:, :3], before[:, :3])
    assert (after[:, 3:] != before[:, 3:]).any()


def test_many_samples_are_worked_on_in_groups_and_one_by_one_alike():
    shape = 7, 12
    layer = Heads(2)
    from psgd.kernels.layers import heads
    from psgd.nn.layer import Room

    rng = np.random.default_rng(0)
    n = 2 * heads.scratch_samples(2, 7) // 1000 * 1000 + 1
    assert n > heads.scratch_samples(2, 7)
    x, dy = rng.standard_normal((n, *shape)), rng.standard_normal((n, 7, 4))
    state = layer.allocate(Room(np, n, np.dtype(np.float64), shape, True))
    y = layer.forward(state, x, ()).copy()
    dx = layer.backward(state, dy, (), ())
    one = layer.allocate(Room(np, 1, np.dtype(np.float64), shape, True))
    for i in (0, n // 2, n - 1):
        np.testing.assert_array_equal(layer.forward(one, x[i : i + 1], ())[0], y[i])
        np.testing.assert_array_equal(layer.backward(one, dy[i : i + 1], (), ())[0], dx[i])


def test_large_scores_do_not_overflow():
    run = Run(Heads(1), (5, 6), dtype=np.float32)
    run.x *= 1e4
    y, dx = run.backward()
    assert np.isfinite(y).all() and np.isfinite(dx).all()


def test_nan_stays():
    run = Run(Heads(1), (5, 6))
    run.x[0, 2] = np.nan
    y = run.forward()
    assert np.isnan(y[0, 2:]).all() and np.isfinite(y[1:]).all()
