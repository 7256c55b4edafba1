"""async: each push is a group of its own, applied once as it comes; its worker continues at once.

Downpour SGD (Dean et al. 2012). The gradient was computed on parameters that others have moved since: its staleness
is the version at which it is applied minus the version pulled.
"""

from collections.abc import Sequence

from psgd.server.log import CheckpointPoint, Contribution, LogEntry
from psgd.server.wire import Header


class Asynchronous:
    """Applies and releases push by push."""

    fixed_order = False

    def __init__(self, workers: int) -> None:
        pass

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        return (LogEntry((Contribution(push.worker, push.push),), (push.worker,)),)

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        return ()

    def on_lost(self, worker: int) -> None:
        """Nothing waits for it."""

    def on_back(self, workers: Sequence[int]) -> None:
        """Nothing was closed behind them."""

    def restore(self, point: CheckpointPoint) -> None:
        """Nothing to restore."""


create = Asynchronous
