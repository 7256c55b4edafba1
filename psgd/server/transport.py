"""What a server needs from the outside: headers in, segments in, replies out.

The server loop takes any object of this shape, so that a fake drives it in one process and MPI in the real run.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.server.log import LogEntry
from psgd.server.wire import Header

Vector = NDArray[np.floating]


class ServerTransport(Protocol):
    """A server's side of the wire. All waiting happens here."""

    def next(self) -> Header | LogEntry:
        """The next header of any worker, or (on servers that follow) the next entry of server 0's log. Blocks.

        A push's header is valid until its worker is answered, another one until the next call.
        """

    def fetch(self, worker: int, segment: int) -> Vector:
        """The next segment of the worker's gradient. Blocks. Valid until the next fetch from that worker."""

    def settings(self, worker: int) -> NDArray[np.float64]:
        """What the worker's newest push says for the rule. Valid until the worker is answered."""

    def settle(self, segment: int) -> None:
        """Returns once no earlier reply still reads this segment of the parameters. Blocks."""

    def reply(self, workers: Sequence[int], header: Header) -> None:
        """Begins a reply to each worker: a copy of the header with its worker field filled in. Does not block."""

    def emit(self, workers: Sequence[int], segment: int) -> None:
        """Sends one segment of the parameters, as it is now, behind the reply's header. Does not block."""

    def publish(self, entry: LogEntry) -> None:
        """Server 0: hands a log entry to the other servers. Does not block."""

    def drain(self) -> None:
        """Returns once everything that was sent has arrived. Blocks."""
