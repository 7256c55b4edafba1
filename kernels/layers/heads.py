"""Causal attention: what each token takes from those up to it, by the likeness of a query to their keys.

Queries, keys and values lie beside each other, head by head: (samples, tokens, heads, 3, features). So a part of the
heads is a part of the columns of what made them, and no product needs a copy.
"""

import math

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device

_AT_ONCE = 1 << 18
"""Shares that are worked on before the next samples: they stay in the cache between the products."""


def scratch_samples(heads: int, tokens: int) -> int:
    """For how many samples the host works on shares at once."""
    return max(1, _AT_ONCE // (heads * tokens * tokens))


@by_device
def attend(qkv: Array, shares: Array, y: Array) -> None:
    """Computes shares = softmax(q k^T / sqrt(features)) over the tokens up to each, and y = shares v.

    Args:
        qkv: (n, tokens, heads, 3, features), C-contiguous.
        shares: (n, heads, tokens, tokens), C-contiguous; overwritten: for backward.
        y: (n, tokens, heads, features), C-contiguous; overwritten.
    """
    from psgd.kernels.layers import exponentials

    q, k, v = _by_head(qkv)
    out = y.transpose(0, 2, 1, 3)
    heads, tokens = shares.shape[1:3]
    scale = 1 / math.sqrt(qkv.shape[-1])
    step = scratch_samples(heads, tokens)
    for start in range(0, len(qkv), step):
        part = slice(start, start + step)
        scores = shares[part]
        np.matmul(q[part], k[part].swapaxes(2, 3), out=scores)
        exponentials.causal_softmax(scores.reshape(-1, tokens, tokens), scale)
        np.matmul(scores, v[part], out=out[part])


@by_device
def attend_backward(qkv: Array, shares: Array, dy: Array, dqkv: Array, scratch: Array) -> None:
    """Overwrites dqkv with the gradient for qkv.

    Args:
        qkv: as `attend`.
        shares: what `attend` left.
        dy: (n, tokens, heads, features), C-contiguous.
        dqkv: shape of qkv, C-contiguous.
        scratch: (samples, heads, tokens, tokens), overwritten: on the host `scratch_samples`, on a GPU n or more.
    """
    from psgd.kernels.layers import exponentials

    (q, k, v), (dq, dk, dv) = _by_head(qkv), _by_head(dqkv)
    slope = dy.transpose(0, 2, 1, 3)
    tokens = shares.shape[2]
    scale = 1 / math.sqrt(qkv.shape[-1])
    for start in range(0, len(qkv), len(scratch)):
        part = slice(start, min(start + len(scratch), len(qkv)))
        share, dscores = shares[part], scratch[: part.stop - start]
        np.matmul(share.swapaxes(2, 3), slope[part], out=dv[part])
        np.matmul(slope[part], v[part].swapaxes(2, 3), out=dscores)
        square = -1, tokens, tokens
        exponentials.causal_softmax_backward(share.reshape(square), dscores.reshape(square), scale)
        np.matmul(dscores, k[part], out=dq[part])
        np.matmul(dscores.swapaxes(2, 3), q[part], out=dk[part])


def _by_head(qkv: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values as (n, heads, tokens, features): views."""
    q, k, v = (qkv[:, :, :, which].transpose(0, 2, 1, 3) for which in range(3))
    return q, k, v
