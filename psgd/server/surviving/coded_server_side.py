"""A server's side of encoded pushes and pulls, which tells of workers that died instead of failing with them.

A push counts once its payload is here. What the server knows of a worker goes with it: its decoded gradient, and the
parameters that it had.
"""

import numpy as np
from mpi4py import MPI

from psgd.server.log import LogEntry
from psgd.server.surviving.agreed_server_side import AgreedServerTransport
from psgd.server.surviving.hand_over import Lost
from psgd.server.surviving.server_side import SurvivingServerTransport
from psgd.server.transports.compressed_server_transport import CompressedServerTransport
from psgd.server.wire import NOTHING, WHOLE, Header


class CodedServerTransport(SurvivingServerTransport, CompressedServerTransport):
    """The only server's. The arguments are those of `SurvivingServerTransport`; `encodes` has to follow."""

    def next(self) -> Header | LogEntry | Lost:  # type: ignore[override]
        return self._without_the_dead(super().next())

    def _without_the_dead(self, event: Header | LogEntry | Lost) -> Header | LogEntry | Lost:
        """Drops what is known of a worker that the loop hears of as lost; the same event."""
        if isinstance(event, Lost) and self._copies:
            copy = self._copies[event.worker]
            copy.params = copy.gradient = np.empty(0, copy.params.dtype)
        return event

    def whole(self, worker: int) -> bool:
        sent = self._copies[worker].payload_bytes if self._copies else WHOLE
        if sent in (WHOLE, NOTHING):
            return sent == NOTHING or super().whole(worker)
        return self._passed(worker, self._copies[worker].payloads.arrived, self._waiter.flowing)

    def _expect(self, worker: int) -> None:
        try:
            super()._expect(worker)
        except MPI.Exception as error:
            self._notice(error)

    def drain(self) -> None:
        super().drain()
        for worker, copy in enumerate(self._copies):
            self._passed(worker, copy.payloads.sent, self._waiter.until)


class AgreedCodedServerTransport(AgreedServerTransport, CodedServerTransport):
    """One of several servers'."""

    def next(self) -> Header | LogEntry | Lost:  # type: ignore[override]
        return self._without_the_dead(super().next())

    def _followed(self, worker: int, header: Header) -> bool:
        if not self._copies or header.payload_bytes == WHOLE:
            return super()._followed(worker, header)
        return header.payload_bytes == NOTHING or self._copies[worker].payloads.arrived()
