"""Update rules of a server on the host whose parameters and optimizer state are kept on a GPU."""

from typing import Any

import cupy

from psgd.backend import pinned
from psgd.optim.rules import Rule, State, Vector


def on_device(rule: Rule) -> Rule:
    """The same rule for vectors on the host, with the arithmetic on the current GPU.

    A step takes parameters and gradient there and the parameters back: three copies over the bus for one pass. The bits
    are those of the host's rule. Only the state stays on the GPU.
    """
    parts: dict[int, tuple[Any, Any]] = {}

    def update(params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        if params.size not in parts:
            parts[params.size] = (cupy.empty(params.size, params.dtype), cupy.empty(params.size, params.dtype))
        there, gradient = parts[params.size]
        pinned.upload(there, params)
        pinned.upload(gradient, grad)
        rule.update(there, gradient, state, lr, scale, step)
        pinned.download(params, there)
        pinned.wait()

    def init(params: Vector) -> State:
        return rule.init(cupy.asarray(params))

    return Rule(rule.name, init, update, rule.factor, rule.weight_decay)
