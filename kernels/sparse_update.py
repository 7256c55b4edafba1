"""Optimizer steps on parameters that others write to at the same moment: what stays as it is is not written.

The steps are those of `psgd.kernels.update` without weight decay, bit for bit. An element whose step is 0 is neither
read nor written, so that another process's step on it, taken meanwhile, is not overwritten. State is the caller's own.
On the host alone: processes do not share parameters in GPU memory.

Writing under a mask is as fast as writing everything while the caches hold the vector, and up to 1.7 times slower
beyond. So long vectors go block by block: one without a zero is written as a whole, one of zeros not at all.
"""

import numpy as np

from psgd.kernels.jit import kernel, part
from psgd.kernels.update import adam_rates, multiply_add

LONG_BYTES = 4 << 20
BLOCK = 512
MIXED = 16 * BLOCK
"""Elements that are stepped under a mask from a block on that has both: looking into each would cost more."""


@part
def _sgd(params: np.ndarray, grad: np.ndarray, lr: float, scale: float) -> None:
    for i in range(params.size):
        if grad[i] != 0:
            params[i] = multiply_add(-lr, scale * grad[i], params[i])


@kernel
def sgd(params: np.ndarray, grad: np.ndarray, lr: float, scale: float) -> None:
    """`w -= lr * g` where g is not 0."""
    lr_, scale_ = params.dtype.type(lr), params.dtype.type(scale)
    start = 0
    if params.size * params.itemsize <= LONG_BYTES:
        _sgd(params, grad, lr_, scale_)
        start = params.size
    while start < params.size:
        w, g, zeros, done = params[start : start + BLOCK], grad[start : start + BLOCK], 0, BLOCK
        for i in range(g.size):
            zeros += g[i] == 0
        if zeros == 0:
            for i in range(g.size):
                w[i] = multiply_add(-lr_, scale_ * g[i], w[i])
        elif zeros < g.size:
            done = MIXED
            _sgd(params[start : start + done], grad[start : start + done], lr_, scale_)
        start += done


@part
def _momentum(
    params: np.ndarray, grad: np.ndarray, velocity: np.ndarray, lr: float, scale: float, factor: float, nesterov: bool
) -> None:
    for i in range(params.size):
        g = scale * grad[i]
        v = factor * velocity[i] + g
        velocity[i] = v
        along = multiply_add(factor, v, g) if nesterov else v
        if along != 0:
            params[i] = multiply_add(-lr, along, params[i])


@kernel
def momentum(
    params: np.ndarray, grad: np.ndarray, velocity: np.ndarray, lr: float, scale: float, factor: float, nesterov: bool
) -> None:
    """`v = factor * v + g; w -= lr * v`, or `w -= lr * (g + factor * v)` with Nesterov, where that is not 0."""
    lr_, scale_, factor_ = params.dtype.type(lr), params.dtype.type(scale), params.dtype.type(factor)
    start = 0
    if params.size * params.itemsize <= LONG_BYTES:
        _momentum(params, grad, velocity, lr_, scale_, factor_, nesterov)
        start = params.size
    while start < params.size:
        stop = start + BLOCK
        w, g, v, zeros = params[start:stop], grad[start:stop], velocity[start:stop], 0
        for i in range(g.size):
            step = scale_ * g[i]
            speed = factor_ * v[i] + step
            v[i] = speed
            zeros += (multiply_add(factor_, speed, step) if nesterov else speed) == 0
        if zeros == 0:
            for i in range(g.size):
                along = multiply_add(factor_, v[i], scale_ * g[i]) if nesterov else v[i]
                w[i] = multiply_add(-lr_, along, w[i])
        elif zeros < g.size:
            for i in range(g.size):
                along = multiply_add(factor_, v[i], scale_ * g[i]) if nesterov else v[i]
                if along != 0:
                    w[i] = multiply_add(-lr_, along, w[i])
        start = stop


@part
def _adam(
    params: np.ndarray,
    grad: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    scale: float,
    shares: tuple[float, float, float, float],
    rates: tuple[float, float, float],
) -> None:
    (beta1, beta2, rest1, rest2), (rate, root, epsilon) = shares, rates
    for i in range(params.size):
        g = scale * grad[i]
        m = beta1 * mean[i] + rest1 * g
        s = beta2 * square[i] + rest2 * g * g
        mean[i] = m
        square[i] = s
        if m != 0:
            params[i] -= rate * m / (np.sqrt(s) * root + epsilon)


@kernel
def adam(
    params: np.ndarray,
    grad: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    lr: float,
    scale: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
) -> None:
    """Adam with bias correction where the mean is not 0; `step` counts from 1."""
    kind = params.dtype.type
    scale_, beta1_, beta2_, rest1, rest2 = kind(scale), kind(beta1), kind(beta2), kind(1.0 - beta1), kind(1.0 - beta2)
    corrected, root_ = adam_rates(lr, beta1, beta2, step)
    rate, root, epsilon_ = kind(corrected), kind(root_), kind(epsilon)
    shares, rates = (beta1_, beta2_, rest1, rest2), (rate, root, epsilon_)
    start = 0
    if params.size * params.itemsize <= LONG_BYTES:
        _adam(params, grad, mean, square, scale_, shares, rates)
        start = params.size
    while start < params.size:
        stop = start + BLOCK
        w, g, m, s, zeros = params[start:stop], grad[start:stop], mean[start:stop], square[start:stop], 0
        for i in range(g.size):
            along = scale_ * g[i]
            m[i] = beta1_ * m[i] + rest1 * along
            s[i] = beta2_ * s[i] + rest2 * along * along
            zeros += m[i] == 0
        if zeros == 0:
            for i in range(g.size):
                w[i] -= rate * m[i] / (np.sqrt(s[i]) * root + epsilon_)
        elif zeros < g.size:
            for i in range(g.size):
                if m[i] != 0:
                    w[i] -= rate * m[i] / (np.sqrt(s[i]) * root + epsilon_)
        start = stop
