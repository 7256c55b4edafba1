"""For tests of strategies with servers: pushes as a policy sees them, and what it decided, without the rest."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from psgd.server.log import CheckpointPoint


def push(worker: int, number: int, samples: int = 1) -> Any:
    """What a policy reads of a push."""
    return SimpleNamespace(worker=worker, push=number, samples=samples)


def said(entries: Sequence[Any]) -> list[tuple[list[tuple[int, int]], list[int], bool]]:
    """Of each log entry: (worker, push) of its group, whom it releases, and whether the group stays open."""
    return [([(m.worker, m.push) for m in each.group], list(each.release), each.stays_open) for each in entries]


def restored(policy: Any, clocks: Sequence[int] = (), open_contributions: int = 0) -> Any:
    """The policy after a checkpoint at which the log was there."""
    policy.restore(CheckpointPoint(0, 0, list(clocks), open_contributions))
    return policy
