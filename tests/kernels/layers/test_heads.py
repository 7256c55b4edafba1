"""Attention's shares and gradients on a GPU and on the host, against the formula in float64."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import heads

HOST = heads.attend, heads.attend_backward
DEVICE = pytest.param(*(on_gpu(f).values[0] for f in HOST), marks=pytest.mark.gpu)


def formula(qkv, dy):
    q, k, v = (qkv[:, :, :, which].transpose(0, 2, 1, 3) for which in range(3))
    tokens, features = q.shape[2:]
    scores = np.where(np.tri(tokens, dtype=bool), q @ k.swapaxes(2, 3) / np.sqrt(features), -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)
    slope = dy.transpose(0, 2, 1, 3)
    dshares = slope @ v.swapaxes(2, 3)
    dscores = shares * (dshares - (shares * dshares).sum(-1, keepdims=True)) / np.sqrt(features)
    d = dscores @ k, dscores.swapaxes(2, 3) @ q, shares.swapaxes(2, 3) @ slope
    return (shares @ v).transpose(0, 2, 1, 3), np.stack([a.transpose(0, 2, 1, 3) for a in d], axis=3)


@pytest.mark.parametrize(("forward", "backward"), [HOST, DEVICE], ids=["host", "gpu"])
@pytest.mark.parametrize(
    ("n", "tokens", "count", "features"),
    [(1, 1, 1, 1), (2, 5, 3, 1), (3, 40, 2, 7), (2, 128, 4, 32), (1, 150, 2, 3), (300, 33, 1, 4)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_formula(forward, backward, n, tokens, count, features, dtype):
    rng = np.random.default_rng(tokens)
    qkv = rng.standard_normal((n, tokens, count, 3, features)).astype(dtype)
    dy = rng.standard_normal((n, tokens, count, features)).astype(dtype)
    y, shares = np.full_like(dy, np.nan), np.full((n, count, tokens, tokens), np.nan, dtype)
    forward(qkv, shares, y)
    dqkv = np.full_like(qkv, np.nan)
    backward(qkv, shares, dy, dqkv, np.full_like(shares, np.nan))
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for found, expected in zip((y, dqkv), formula(qkv.astype(float), dy.astype(float)), strict=True):
        np.testing.assert_allclose(found, expected, **near)
