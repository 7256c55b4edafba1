"""A server's side of the wire where there are several: all servers get the same events in the same order.

A worker's exchange is handed out once every server has it as a whole, so that no death of a worker can break a group
that some have begun. `psgd.server.surviving.sequence` agrees on the order.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import PeerLostError
from psgd.runtime.mesh import Mesh
from psgd.server.log import LogEntry
from psgd.server.surviving.hand_over import Lost, Words
from psgd.server.surviving.peers import Peers
from psgd.server.surviving.sequence import EventKind, OrderedEvent
from psgd.server.surviving.sequence import Sequence as Agreement
from psgd.server.surviving.server_side import SurvivingServerTransport
from psgd.server.wire import Header, MessageKind

Vector = NDArray[np.floating]
_REPORT, _INIT, _PUSH = int(MessageKind.REPORT), int(MessageKind.INIT), int(MessageKind.PUSH)


class AgreedServerTransport(SurvivingServerTransport):
    """One of several servers'. The arguments are those of `SurvivingServerTransport`."""

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        ranges: Sequence[range],
        waiter: Waiter,
        *,
        grads: Sequence[Vector | None] | None = None,
        settings: int = 0,
        inline: bool = True,
    ) -> None:
        super().__init__(mesh, params, ranges, waiter, grads=grads, settings=settings, inline=inline)
        self._agreement = Agreement(mesh.index, mesh.servers, mesh.workers)
        self._peers = Peers(mesh, Agreement.longest(mesh.workers), self._notice)
        self._coming: dict[int, Header] = {}  # of each worker, whose gradient may be on its way
        self._here: dict[int, Header] = {}  # as a whole, but not handed out yet
        self._torn: set[int] = set()  # of whom something failed to come: MPI calls that request done from then on
        self._reports: deque[Header] = deque()

    def next(self) -> Header | LogEntry | Lost:  # type: ignore[override]
        while True:
            if self._reports:
                return self._reports.popleft()
            while self._agreement.decided:
                if (found := self._happened(self._agreement.decided.popleft())) is not None:
                    return found
            self._waiter.until(self._look_at_all)

    def _happened(self, event: OrderedEvent) -> Header | Lost | None:
        """What the loop is to hear of an event."""
        if event.kind == EventKind.EXCHANGE:
            return self._here.pop(event.who)
        self._note_failed(self._mesh.worker_rank(event.who))  # others may have noticed first
        self._coming.pop(event.who, None)
        self._here.pop(event.who, None)
        return Lost(event.who)

    def _look_at_all(self) -> bool:
        super()._look_at_all()
        while self._events:
            header = self._events.popleft()
            assert isinstance(header, Header)
            if header.kind == _REPORT:
                self._reports.append(header)
            else:
                self._coming[header.worker] = header
        agreement = self._agreement
        for worker, header in list(self._coming.items()):
            if self._here_as_a_whole(worker, header):
                self._arrive(self._coming.pop(worker))
        while self._untold:
            agreement.worker_died(self._untold.popleft())
        self._keep_order()
        return bool(agreement.decided or self._reports)

    def _keep_order(self) -> None:
        """Takes in what other servers say of the order, and says what they need to know. Does not block."""
        for server, words in self._peers.received():
            self._agreement.receive(server, words)
        self._send_all()

    def _arrive(self, header: Header) -> None:
        """An exchange is here as a whole."""
        self._here[header.worker] = header
        self._agreement.arrived(header.worker)

    def _send_all(self) -> None:
        while self._agreement.outbox:
            server, words = self._agreement.outbox.popleft()
            if server in self._agreement.living:
                self._peers.send(server, words)

    def _here_as_a_whole(self, worker: int, header: Header) -> bool:
        """Whether what follows the header is here too. Does not block."""
        if worker in self._dead or worker in self._torn:
            return False
        try:
            return self._followed(worker, header)
        except MPI.Exception as error:
            self._torn.add(worker)
            self._notice(error)
            return False

    def _followed(self, worker: int, header: Header) -> bool:
        """The same, as MPI says; fails where the worker has died."""
        link = self._links[worker]
        if not link.slots_in or not (header.kind == _INIT or (header.kind == _PUSH and header.samples)):
            return True
        return all(
            link.slots_in[(link.fetched + ahead) % len(link.slots_in)].Test() for ahead in range(len(self._ranges))
        )

    def _note_failed(self, rank: int) -> None:
        if rank < self._mesh.servers:
            raise PeerLostError(f"the process of server {rank} ended")
        super()._note_failed(rank)

    def tell(self, messages: Mapping[int, Words]) -> None:
        if self._agreement.leads:
            super().tell(messages)

    def drain(self) -> None:
        super().drain()
        self._waiter.until(lambda: self._peers.sent(self._agreement.living))

    def close(self) -> None:
        self._peers.close()
        super().close()
