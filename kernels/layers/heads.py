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


_BLOCK = 64
"""Tokens of a block: of scores, the blocks above the diagonal are left out."""


def scratch_samples(heads: int, tokens: int) -> int:
    """For how many samples the host works on shares at once."""
    return max(1, _AT_ONCE // (heads * tokens * tokens))


@by_device
def attend(qkv: Array, shares: Array, y: Array) -> None:
    """Computes shares = softmax(q k^T / sqrt(features)) over the tokens up to each, and y = shares v.

    Args:
        qkv: (n, tokens, heads, 3, features), C-contiguous.
        shares: (n, heads, tokens, tokens), C-contiguous; overwritten, on the host not all of it: for backward.
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
        for rows, before, _ in _blocks(tokens):
            np.matmul(q[part, :, rows], k[part, :, before].swapaxes(2, 3), out=shares[part, :, rows, before])
        exponentials.causal_softmax(shares[part].reshape(-1, tokens, tokens), scale, _BLOCK)
        for rows, before, _ in _blocks(tokens):
            np.matmul(shares[part, :, rows, before], v[part, :, before], out=out[part, :, rows])


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
        for rows, before, _ in _blocks(tokens):
            np.matmul(slope[part, :, rows], v[part, :, before].swapaxes(2, 3), out=dscores[:, :, rows, before])
        for columns, _, after in _blocks(tokens):
            np.matmul(share[:, :, after, columns].swapaxes(2, 3), slope[part, :, after], out=dv[part, :, columns])
        square = -1, tokens, tokens
        exponentials.causal_softmax_backward(share.reshape(square), dscores.reshape(square), scale, _BLOCK)
        for block, before, after in _blocks(tokens):
            np.matmul(dscores[:, :, block, before], k[part, :, before], out=dq[part, :, block])
            np.matmul(dscores[:, :, after, block].swapaxes(2, 3), q[part, :, after], out=dk[part, :, block])


def _blocks(tokens: int) -> list[tuple[slice, slice, slice]]:
    """Blocks of tokens, each with the tokens up to its end, and with those from its beginning on."""
    stops = range(_BLOCK, tokens + _BLOCK, _BLOCK)
    return [(slice(stop - _BLOCK, stop), slice(0, stop), slice(stop - _BLOCK, None)) for stop in stops]


def _by_head(qkv: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values as (n, heads, tokens, features): views."""
    q, k, v = (qkv[:, :, :, which].transpose(0, 2, 1, 3) for which in range(3))
    return q, k, v
