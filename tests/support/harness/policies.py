"""For tests of strategies with servers: pushes as a policy sees them, and what it decided, without the rest."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


def push(worker: int, number: int, samples: int = 1) -> Any:
    """What a policy reads of a push."""
    return SimpleNamespace(worker=worker, push=number, samples=samples)


def said(entries: Sequence[Any]) -> list[tuple[list[tuple[int, int]], list[int], bool]]:
    """Of each log entry: (worker, push) of its group, whom it releases, and whether the group stays open."""
    return [([(m.worker, m.push) for m in each.group], list(each.release), each.opens) for each in entries]


def restored(policy: Any, **point: Any) -> Any:
    """The policy after a checkpoint at which the log was there."""
    policy.restore(SimpleNamespace(**{"actions": 0, "version": 0, "clocks": [], "opened": 0} | point))
    return policy
