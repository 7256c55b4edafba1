"""Strategies: which contributions make a group, with which weight, and when a worker may go on.

Each is one file. A strategy sees headers only, never arrays; it runs on server 0 (one with a fixed order: on every
server alike). Strategies without a server are in `psgd.worker.context`.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from psgd.kernels.errors import UsageError
from psgd.server.log import Action, Cut
from psgd.server.wire import Header

_SERVED = {"sync": "synchronous", "async": "asynchronous", "softsync": "softsync", "ssp": "ssp"}
_PEERS = {name: name for name in ("allreduce", "averaging", "easgd", "hogwild", "decentralized")}
NAMES = (*_SERVED, *_PEERS)


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

    def restore(self, cut: Cut) -> None:
        """The run goes on from there, before anything has come. Workers that were done are back, and may push on."""


COMPRESSIBLE = (*_SERVED, "allreduce", "decentralized")
"""Strategies that send gradients or updates, which can be made small (`psgd.compression.options`)."""

ON_DEVICE = ("allreduce", "averaging", "easgd")
"""Strategies that work on parameters on a GPU; for the others they are copied to the host and back at each step."""


def serverless(name: str) -> bool:
    """Whether a strategy has no servers: its ranks are all workers."""
    return isinstance(name, str) and name in _PEERS


def options(name: str) -> list[str]:
    """The names of a strategy's own options.

    Raises:
        UsageError: no such strategy.
    """
    return list(inspect.signature(_factory(name)).parameters)[1:]


def create(name: str, workers: int, others: Sequence[str] = (), /, **chosen: Any) -> Any:
    """What decides a run of that strategy with so many workers.

    Args:
        name: of the strategy.
        workers: how many.
        others: options that are not the strategy's, which may have been meant.
        **chosen: the strategy's own options.

    Returns:
        A `Strategy`, or for a strategy without servers a function from `psgd.worker.context.Peers` to a `psgd.worker.interface.Client`.

    Raises:
        UsageError: no such strategy, or an option that it does not take or that is out of range.
    """
    factory, known = _factory(name), options(name)
    if unknown := sorted(set(chosen) - set(known)):
        near = difflib.get_close_matches(unknown[0], [*known, *others], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"strategy {name}: expected {known or 'no options of its own'}, got {unknown}{hint}")
    return factory(workers, **chosen)


def _factory(name: str) -> Callable[..., Any]:
    if not isinstance(name, str) or name not in NAMES:
        raise UsageError(f"strategy: expected one of {', '.join(NAMES)}, got {name!r}")
    module = f"psgd.strategies.{_SERVED[name]}" if name in _SERVED else f"psgd.worker.context.{_PEERS[name]}"
    factory: Callable[..., Any] = importlib.import_module(module).create
    return factory
