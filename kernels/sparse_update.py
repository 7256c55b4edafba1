"""Optimizer steps on parameters that others write to at the same moment: what stays as it is is not written.

The steps are those of `psgd.kernels.update` without weight decay, bit for bit. An element whose step is 0 is neither
read nor written, so that another process's step on it, taken meanwhile, is not overwritten. State is the caller's own.
On the host alone: processes do not share parameters in GPU memory.
"""

import numpy as np

from psgd.kernels.jit import kernel
from psgd.kernels.update import adam_rates, multiply_add


@kernel
def sgd(params: np.ndarray, grad: np.ndarray, lr: float, scale: float) -> None:
    """`w -= lr * g` where g is not 0."""
    lr_, scale_ = params.dtype.type(lr), params.dtype.type(scale)
    for i in range(params.size):
        if grad[i] != 0:
            params[i] = multiply_add(-lr_, scale_ * grad[i], params[i])


@kernel
def momentum(
    params: np.ndarray, grad: np.ndarray, velocity: np.ndarray, lr: float, scale: float, factor: float, nesterov: bool
) -> None:
    """`v = factor * v + g; w -= lr * v`, or `w -= lr * (g + factor * v)` with Nesterov, where that is not 0."""
    lr_, scale_, factor_ = params.dtype.type(lr), params.dtype.type(scale), params.dtype.type(factor)
    for i in range(params.size):
        g = scale_ * grad[i]
        v = factor_ * velocity[i] + g
        velocity[i] = v
        along = multiply_add(factor_, v, g) if nesterov else v
        if along != 0:
            params[i] = multiply_add(-lr_, along, params[i])


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
    for i in range(params.size):
        g = scale_ * grad[i]
        m = beta1_ * mean[i] + rest1 * g
        s = beta2_ * square[i] + rest2 * g * g
        mean[i] = m
        square[i] = s
        if m != 0:
            params[i] -= rate * m / (np.sqrt(s) * root + epsilon_)
