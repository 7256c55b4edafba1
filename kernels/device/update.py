"""Optimizer steps in GPU memory: `psgd.kernels.update` bit for bit, each in one pass."""

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import Elementwise
from psgd.kernels.update import adam_rates

_GRADIENT = "T g = fma(decay, params, scale * grad); "
_SGD = Elementwise("sgd", "inout params, in grad", "lr scale decay", _GRADIENT + "params = fma(-lr, g, params)")
_VELOCITY = _GRADIENT + "T v = factor * velocity + g; velocity = v; params = fma(-lr, {along}, params)"
_MOMENTUM, _NESTEROV = (
    Elementwise(name, "inout params, in grad, inout velocity", "lr scale decay factor", _VELOCITY.format(along=along))
    for name, along in (("momentum", "v"), ("nesterov", "fma(factor, v, g)"))
)
_ADAM = Elementwise(
    "adam",
    "inout params, in grad, inout mean, inout square",
    "rate root scale decay beta1 beta2 rest1 rest2 epsilon",
    "T g = scale * grad + decay * params; T m = beta1 * mean + rest1 * g; T s = beta2 * square + rest2 * g * g;"
    "mean = m; square = s; params -= rate * m / (sqrt(s) * root + epsilon)",
)


def sgd(params: Array, grad: Array, lr: float, scale: float, weight_decay: float) -> None:
    _SGD((params, grad), (lr, scale, weight_decay))


def momentum(
    params: Array,
    grad: Array,
    velocity: Array,
    lr: float,
    scale: float,
    weight_decay: float,
    factor: float,
    nesterov: bool,
) -> None:
    (_NESTEROV if nesterov else _MOMENTUM)((params, grad, velocity), (lr, scale, weight_decay, factor))


def adam(
    params: Array,
    grad: Array,
    mean: Array,
    square: Array,
    lr: float,
    scale: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
) -> None:
    rate, root = adam_rates(lr, beta1, beta2, step)
    scalars = (rate, root, scale, weight_decay, beta1, beta2, 1.0 - beta1, 1.0 - beta2, epsilon)
    _ADAM((params, grad, mean, square), scalars)
