"""What a server asks a strategy: on headers alone, never on arrays."""

from typing import Protocol

from psgd.server.log import CheckpointPoint, LogEntry
from psgd.server.wire import Header


class Policy(Protocol):
    """What a server asks at each header.

    Attributes:
        fixed_order: the order follows from the workers' clocks alone, so each server finds it by itself.
    """

    fixed_order: bool

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        """A worker's push has come at time `now` (seconds, any origin); what happens next, in order."""

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        """A worker has no more pushes; what this sets free."""

    def restore(self, cut: CheckpointPoint) -> None:
        """The run goes on from there, before anything has come. Workers that were done are back, and may push on."""
