"""Strategies: which contributions make a group, with which weight, and when a worker may go on.

Each is one file. A strategy sees headers only, never arrays; it runs on server 0 (one with a fixed order: on every
server alike).
"""

import importlib
import inspect
from typing import Any, Protocol

from psgd.kernels.errors import UsageError
from psgd.order import Action
from psgd.wire import Header

_FILES = {"sync": "synchronous", "async": "asynchronous"}
NAMES = tuple(_FILES)


class Strategy(Protocol):
    """What a server asks at each header.

    Attributes:
        fixed_order: the order follows from the workers' clocks alone, so each server finds it by itself.
    """

    fixed_order: bool

    def on_push(self, push: Header, now: float) -> tuple[Action, ...]:
        """A worker's push has come at time `now` (seconds, any origin); what happens next, in order."""

    def on_done(self, worker: int, now: float) -> tuple[Action, ...]:
        """A worker has no more pushes; what this sets free."""


def create(name: str, workers: int, **options: Any) -> Strategy:
    """The strategy of that name for so many workers.

    Raises:
        UsageError: no such strategy, or an option that it does not take.
    """
    if not isinstance(name, str) or name not in _FILES:
        raise UsageError(f"strategy: expected one of {', '.join(NAMES)}, got {name!r}")
    factory = importlib.import_module(f"psgd.strategies.{_FILES[name]}").create
    known = list(inspect.signature(factory).parameters)[1:]
    if unknown := sorted(set(options) - set(known)):
        raise UsageError(f"strategy {name}: expected {known or 'no options of its own'}, got {unknown}")
    strategy: Strategy = factory(workers, **options)
    return strategy
