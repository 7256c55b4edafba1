"""The optimizer's direction in a separate array: to be sent instead of applied."""

import numpy as np

from psgd.kernels.jit import kernel


@kernel
def direction(
    out: np.ndarray,
    grad: np.ndarray,
    params: np.ndarray,
    velocity: np.ndarray,
    scale: float,
    weight_decay: float,
    factor: float,
    rate: float,
) -> None:
    """`v = factor * v + (scale * g + weight_decay * w); out = rate * v`, in one pass.

    Args:
        out: written; not one of the others.
        grad: g.
        params: w; not read where weight_decay is 0.
        velocity: v, changed in place; empty where factor is 0, and then no v is kept.
        scale: of the gradient.
        weight_decay: L2 coefficient.
        factor: of momentum.
        rate: minus the learning rate for a change of the parameters, 1 for a direction.
    """
    kind = out.dtype.type
    scale_, decay_, factor_, rate_ = kind(scale), kind(weight_decay), kind(factor), kind(rate)
    if velocity.size:
        if weight_decay != 0.0:
            for i in range(out.size):
                v = factor_ * velocity[i] + (scale_ * grad[i] + decay_ * params[i])
                velocity[i] = v
                out[i] = rate_ * v
        else:
            for i in range(out.size):
                v = factor_ * velocity[i] + scale_ * grad[i]
                velocity[i] = v
                out[i] = rate_ * v
    elif weight_decay != 0.0:
        for i in range(out.size):
            out[i] = rate_ * (scale_ * grad[i] + decay_ * params[i])
    else:
        for i in range(out.size):
            out[i] = rate_ * (scale_ * grad[i])
