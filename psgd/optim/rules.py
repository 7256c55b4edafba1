"""Update rules: each is a pair of functions, `init` for its state and `update` for one step.

State is passed in and out as a tuple of arrays of the shape of the parameters, so that a rule works on any slice of
the vector: a server's shard, or one segment of it.
"""

import importlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.kernels import sparse_update as sparse_kernels
from psgd.kernels import update as kernels
from psgd.kernels.errors import UsageError
from psgd.optim import catalog

Vector = NDArray[np.floating]
State = tuple[Vector, ...]


class Settings(Protocol):
    """What a rule goes by that workers may change at any step, such as learning rates: it travels with each push.

    Attributes:
        size: how many numbers these are.
        skipped: steps that the rule has left out, as their gradient said; saved and restored with its state.
    """

    size: int
    skipped: int

    def write(self, into: NDArray[np.float64]) -> None:
        """On a worker, before a push: writes them as they are now."""

    def read(self, values: NDArray[np.float64]) -> None:
        """On a server, before a step: from now on the rule goes by these."""


class Rule(NamedTuple):
    """An update rule.

    Attributes:
        name: its name in options.
        init: `init(params) -> state`, arrays of the length and dtype of `params`.
        update: `update(params, grad, state, lr, scale, step)`: one step in place on params and state with the
            gradient `scale * grad`; `step` counts from 1. Allocates nothing.
        factor: of momentum, 0 for plain SGD, for those who apply it elsewhere (`psgd.compression.options`); None for
            other rules.
        weight_decay: likewise.
        sparse: the same as `update` for parameters that others write to meanwhile (strategy hogwild): an element whose
            step is 0 is neither read nor written. None where every element changes, as with weight decay.
        settings: what workers change at any step; None where nothing does. A step on several gradients goes by those
            of the worker with the most pushes behind it, the first of such.
    """

    name: str
    init: Callable[[Vector], State]
    update: Callable[[Vector, Vector, State, float, float, int], None]
    factor: float | None = None
    weight_decay: float = 0.0
    sparse: Callable[[Vector, Vector, State, float, float, int], None] | None = None
    settings: Settings | None = None


def checked(rule: Rule) -> Rule:
    """The rule, whose fields are of the types that they should have.

    Raises:
        UsageError: names the first that is not.
    """
    if not isinstance(rule.name, str):
        raise UsageError(f"rule: expected a Rule whose name is a text, got {rule.name!r}")
    for field in ("init", "update", "sparse"):
        value = getattr(rule, field)
        if not callable(value) and (field != "sparse" or value is not None):
            raise UsageError(f"rule {rule.name}: expected a function as {field}, got {value!r}")
    if rule.factor is not None:
        catalog.MOMENTUM.check(f"rule {rule.name}: factor", rule.factor)
    catalog.WEIGHT_DECAY.check(f"rule {rule.name}: weight_decay", rule.weight_decay)
    return rule


def sgd(weight_decay: float = 0.0) -> Rule:
    """Plain stochastic gradient descent: w <- w - lr (g + weight_decay w)."""

    def update(params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        kernels.sgd(params, grad, lr, scale, weight_decay)

    def sparse(params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        sparse_kernels.sgd(params, grad, lr, scale)

    return Rule("sgd", lambda params: (), update, 0.0, weight_decay, None if weight_decay else sparse)


def momentum(factor: float = 0.9, weight_decay: float = 0.0, nesterov: bool = False) -> Rule:
    """Heavy-ball momentum: v <- factor v + g, w <- w - lr v; or Nesterov's w <- w - lr (g + factor v).

    The form of PyTorch's SGD: the learning rate multiplies the velocity, so changing it acts at once.
    """

    def update(params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        kernels.momentum(params, grad, state[0], lr, scale, weight_decay, factor, nesterov)

    def sparse(params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        sparse_kernels.momentum(params, grad, state[0], lr, scale, factor, nesterov)

    name, known = ("nesterov", None) if nesterov else ("momentum", factor)
    few = None if weight_decay else sparse
    return Rule(name, lambda params: (np.zeros_like(params),), update, known, weight_decay, few)


def nesterov(factor: float = 0.9, weight_decay: float = 0.0) -> Rule:
    """Nesterov momentum; see `momentum`."""
    return momentum(factor, weight_decay, nesterov=True)


def adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0) -> Rule:
    """Adam (Kingma and Ba 2015) with bias correction; weight decay is added to the gradient (L2)."""

    def update(params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        kernels.adam(params, grad, state[0], state[1], lr, scale, weight_decay, beta1, beta2, epsilon, step)

    def sparse(params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        sparse_kernels.adam(params, grad, state[0], state[1], lr, scale, beta1, beta2, epsilon, step)

    few = None if weight_decay else sparse
    return Rule("adam", lambda params: (np.zeros_like(params), np.zeros_like(params)), update, sparse=few)


def create(name: str, momentum_factor: float = 0.9, weight_decay: float = 0.0, option: str = "optimizer") -> Rule:
    """The rule of that name; `option` is what a caller names it by.

    Raises:
        UsageError: no such rule, or a factor or weight decay that cannot be.
    """
    entry = catalog.RULES[catalog.OPTIMIZER.check(option, name)]
    values = {"weight_decay": catalog.WEIGHT_DECAY.check("weight_decay", weight_decay)}
    if entry.momentum:
        values["factor"] = catalog.MOMENTUM.check("momentum", momentum_factor)
    rule: Rule = getattr(importlib.import_module(entry.module), entry.function)(**values)
    return rule
