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
        """A worker's push has arrived at time `now` (seconds, any origin); what happens next, in order.

        The header is valid during the call.
        """

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        """A worker has no more pushes; whom this releases."""

    def restore(self, point: CheckpointPoint) -> None:
        """The run resumes from there, before anything arrives. Workers that were done are back, and may push on."""
