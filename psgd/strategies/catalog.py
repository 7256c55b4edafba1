"""The strategies by name: where each one is, and what `connect` and the command have to know of it beforehand.

A strategy is one file with a function `create(workers, **options)`, which checks its options. With servers it returns
a `psgd.server.policy.Policy`; without, a function from `psgd.worker.context.RunContext` to a
`psgd.worker.interface.Worker`.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from psgd.kernels.errors import UsageError

_SERVED = {"sync": "sync", "async": "async_", "softsync": "softsync", "ssp": "ssp"}
_PEERS = {
    "allreduce": "allreduce",
    "averaging": "averaging",
    "easgd": "easgd.easgd",
    "hogwild": "hogwild",
    "decentralized": "decentralized.decentralized",
}
NAMES = (*_SERVED, *_PEERS)


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
        A `Policy`, or for a strategy without servers a function from
        `RunContext` to a `Worker`.

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
    module = f"psgd.strategies.{_SERVED.get(name) or _PEERS[name]}"
    factory: Callable[..., Any] = importlib.import_module(module).create
    return factory
