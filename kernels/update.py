"""Optimizer steps on flat arrays, each in one pass over parameters, gradient and state.

In all of them the gradient that is applied is `scale * grad + weight_decay * params`, so that averaging,
clipping and L2 regularization cost no pass of their own. Arithmetic is in the dtype of `params`. Arrays are NumPy's or
CuPy's.

SGD, with and without momentum, rounds where PyTorch's does (torch.optim.SGD: its vector loops fuse a product with the
sum that follows it), so that the two give the same bits where `scale` is a power of two.
"""

from typing import Any

import numpy as np

from psgd.kernels.by_device import by_device
from psgd.kernels.jit import intrinsic, kernel


@intrinsic
def multiply_add(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """`a * b + c`, rounded once, of three floats of one dtype."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return (a(a, a, a), generate) if a == b == c else None


@by_device
@kernel
def sgd(params: np.ndarray, grad: np.ndarray, lr: float, scale: float, weight_decay: float) -> None:
    """`w -= lr * g`."""
    lr_, scale_, decay_ = params.dtype.type(lr), params.dtype.type(scale), params.dtype.type(weight_decay)
    for i in range(params.size):
        g = multiply_add(decay_, params[i], scale_ * grad[i])
        params[i] = multiply_add(-lr_, g, params[i])


@by_device
@kernel
def momentum(
    params: np.ndarray,
    grad: np.ndarray,
    velocity: np.ndarray,
    lr: float,
    scale: float,
    weight_decay: float,
    factor: float,
    nesterov: bool,
) -> None:
    """`v = factor * v + g; w -= lr * v`, or `w -= lr * (g + factor * v)` with Nesterov (as PyTorch's SGD)."""
    lr_, scale_, decay_ = params.dtype.type(lr), params.dtype.type(scale), params.dtype.type(weight_decay)
    factor_ = params.dtype.type(factor)
    for i in range(params.size):
        g = multiply_add(decay_, params[i], scale_ * grad[i])
        v = factor_ * velocity[i] + g
        velocity[i] = v
        params[i] = multiply_add(-lr_, multiply_add(factor_, v, g) if nesterov else v, params[i])


@kernel
def adam_rates(lr: float, beta1: float, beta2: float, step: int) -> tuple[float, float]:
    """The learning rate with Adam's bias correction, and the factor for the root of the mean square."""
    return lr / (1.0 - beta1**step), 1.0 / np.sqrt(1.0 - beta2**step)


@by_device
@kernel
def adam(
    params: np.ndarray,
    grad: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    lr: float,
    scale: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
) -> None:
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1); `step` counts from 1."""
    kind = params.dtype.type
    scale_, decay_ = kind(scale), kind(weight_decay)
    beta1_, beta2_, rest1, rest2 = kind(beta1), kind(beta2), kind(1.0 - beta1), kind(1.0 - beta2)
    corrected, root_ = adam_rates(lr, beta1, beta2, step)
    rate, root, epsilon_ = kind(corrected), kind(root_), kind(epsilon)
    for i in range(params.size):
        g = scale_ * grad[i] + decay_ * params[i]
        m = beta1_ * mean[i] + rest1 * g
        s = beta2_ * square[i] + rest2 * g * g
        mean[i] = m
        square[i] = s
        params[i] -= rate * m / (np.sqrt(s) * root + epsilon_)
