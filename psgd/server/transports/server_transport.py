"""A server's side of the wire over MPI, all in persistent requests made once.

A gradient that lies in memory shared with this server is read there; for the others:

Receives stand ready before their messages come: for each worker one header and a few segments (at most 4 MiB), so
data flows while the server does other work. Replies are sent from the parameters where they lie; `settle` keeps a
segment from changing under a reply. A shard of at most `INLINE_BYTES` travels in the header's own message.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.runtime.mesh import Mesh
from psgd.server.log import LogEntry, decode, encode, entry_words
from psgd.server.transports.mailbox import Mailbox, eager_tests
from psgd.server.wire import HEADER_BYTES, Header, MessageKind, travels_inline

Vector = NDArray[np.floating]

WINDOW_BYTES = 4 << 20  # most memory for one worker's gradient in flight
_REPORT = int(MessageKind.REPORT)
_FIRST = (0,)


class WorkerLink(Mailbox):
    """Buffers and requests of one worker.

    Attributes:
        turn: sends the answer, and takes the next header after it: a worker that waits for an answer sends none.
        shared: its gradient by segment where it can be read; else it comes into `slots`, one after the other.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        rank: int,
        params: Vector,
        ranges: Sequence[range],
        grads: Vector | None,
        inline: bool,
        settings: int,
        whole: bool = False,
    ) -> None:
        shared = grads is not None
        super().__init__(
            comm, rank, params, incoming=Tag.PUSH, outgoing=Tag.REPLY, inline=inline, shared=shared, settings=settings
        )
        self.turn = (self.header_out, self.header_in)
        self.slots: list[Vector] = []
        self.slots_in: list[MPI.Prequest] = []
        self.params_out: list[MPI.Prequest] = []
        self.fetched = 0  # segments fetched in all: the slot is this modulo the slots
        self.shared: list[Vector] = []
        if grads is not None:
            self.shared = [grads[part.start : part.stop] for part in ranges]
        if self.inline or not ranges:
            return
        for part in ranges:
            self.params_out.append(comm.Send_init([params[part.start : part.stop], MPI.BYTE], rank, Tag.PARAMETERS))
        if grads is not None:
            return
        # Two slots let one segment come while another is added up; more than a gradient and one has no use.
        longest = len(ranges[0])
        count = len(ranges) + 1
        if not whole:
            count = min(count, max(2, WINDOW_BYTES // (longest * params.itemsize)))
        for slot in np.empty((count, longest), params.dtype):
            self.slots.append(slot)
            self.slots_in.append(comm.Recv_init([slot, MPI.BYTE], rank, Tag.GRADIENT))


class MpiServerTransport:
    """Implements `psgd.server.transport.ServerTransport`.

    Args:
        mesh: who is who.
        params: the shard, 1-D and contiguous; replies are sent from it.
        ranges: its segments.
        waiter: how to wait.
        grads: each worker's gradient for this shard where it can be read from here, else None; None where none can.
        follows: whether this server receives server 0's log.
        inline: small shards travel in the header's message.
        settings: how many numbers for the rule follow a push's header.
        whole: there is room for each worker's whole gradient, so that it can be there before its group is begun.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        ranges: Sequence[range],
        waiter: Waiter,
        *,
        grads: Sequence[Vector | None] | None = None,
        follows: bool = False,
        inline: bool = True,
        settings: int = 0,
        whole: bool = False,
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._mesh = mesh
        self._params = params
        self._ranges = ranges
        self._waiter = waiter
        self._inline = inline and travels_inline(params.nbytes)
        comm, seen = mesh.world, grads or [None] * mesh.workers
        self._links = [self._make_link(w, seen[w], settings, whole) for w in range(mesh.workers)]
        self._events: deque[Header | LogEntry] = deque()
        self._reading: list[list[MPI.Prequest]] = [[] for _ in ranges]
        self._receives = [link.header_in for link in self._links]
        self._entry = np.zeros(entry_words(mesh.workers), np.int64)
        self._published: deque[tuple[MPI.Request, NDArray[np.int64]]] = deque()
        if follows:
            self._receives.append(comm.Recv_init([self._entry, MPI.INT64_T], 0, Tag.ORDER))
        # Testing the request of a single worker takes a seventh of Testsome's time. To MPI, what was not started is
        # done; but a worker that is the only one to wait for has been answered, and so its receive is started.
        alone = len(self._receives) == 1
        self._arrived: Callable[[], Any] = (
            self._receives[0].Test if alone else partial(MPI.Request.Testsome, self._receives)
        )
        self._eager = eager_tests(waiter)
        MPI.Prequest.Startall([*self._receives, *(slot for link in self._links for slot in link.slots_in)])

    def _make_link(self, worker: int, grads: Vector | None, settings: int, whole: bool) -> WorkerLink:
        mesh = self._mesh
        return WorkerLink(
            mesh.world, mesh.worker_rank(worker), self._params, self._ranges, grads, self._inline, settings, whole
        )

    def next(self) -> Header | LogEntry:
        # One call of MPI looks at all workers and may find several headers: they are handed out in the order of
        # workers, and MPI is asked again only when none is left, so that no worker is served twice before another.
        events, links = self._events, self._links
        if not events:
            for _ in self._eager:
                if found := self._arrived():
                    break
            else:
                found = self._waiter.until(self._arrived)
            for index in _FIRST if found is True else found or ():
                if index == len(links):
                    events.append(decode(self._entry.copy(), len(links)))
                    self._receives[index].Start()
                    continue
                self._receive(index)
        return events.popleft()

    def _receive(self, worker: int) -> None:
        """Hands out the header that has come from a worker."""
        link = self._links[worker]
        header = link.incoming
        self.bytes_received += link.nbytes_in
        header.check(worker, self._mesh.index)
        if header.kind == _REPORT:  # nobody answers it, so the next header may come at any time
            header = Header.from_buffer_copy(header)
            link.header_in.Start()
        self._events.append(header)

    def fetch(self, worker: int, segment: int) -> Vector:
        link = self._links[worker]
        if link.shared:
            view = link.shared[segment]
            self.bytes_received += view.nbytes
            return view
        if self._inline:
            return link.payload_in
        # The slots are a ring: the one that was handed out last is read no more, so the segment that is as many
        # ahead as there are slots may come into it now.
        slots, turn = link.slots_in, link.fetched
        if turn:
            slots[(turn - 1) % len(slots)].Start()
        link.fetched = turn + 1
        at = turn % len(slots)
        self._waiter.flowing(slots[at].Test)
        view = link.slots[at][: len(self._ranges[segment])]
        self.bytes_received += view.nbytes
        return view

    def settings(self, worker: int) -> NDArray[np.float64]:
        return self._links[worker].settings

    def settle(self, segment: int) -> None:
        reading = self._reading[segment]
        for request in reading:
            if not request.Test():
                self._waiter.until(request.Test)
        reading.clear()

    def reply(self, workers: Sequence[int], header: Header) -> None:
        raw = bytes(header)
        for index in workers:
            link = self._links[index]
            if not link.header_out.Test():
                self._waiter.until(link.header_out.Test)
            link.outgoing_bytes[:] = raw
            link.outgoing.worker = index
            if not self._inline:  # else it goes with the parameters
                self.bytes_sent += HEADER_BYTES
                for request in link.turn:
                    request.Start()

    def emit(self, workers: Sequence[int], segment: int) -> None:
        if self._inline:
            for index in workers:
                link = self._links[index]
                link.payload_out[:] = self._params
                for request in link.turn:
                    request.Start()
                self.bytes_sent += link.nbytes_out
            return
        reading = self._reading[segment]
        for index in workers:
            request = self._links[index].params_out[segment]
            if not request.Test():
                self._waiter.until(request.Test)  # its worker asked again, so this is about to be over
            request.Start()
            reading.append(request)
        self.bytes_sent += len(workers) * len(self._ranges[segment]) * self._params.itemsize

    def publish(self, entry: LogEntry) -> None:
        while self._published and self._published[0][0].Test():
            self._published.popleft()
        words = np.zeros(entry_words(self._mesh.workers), np.int64)
        used = encode(entry, words)
        for index in range(1, self._mesh.servers):
            request = self._mesh.world.Isend([words[:used], MPI.INT64_T], self._mesh.server_rank(index), Tag.ORDER)
            self._published.append((request, words))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the wire itself has to remember at a checkpoint, as views."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]], pulled: Mapping[int, Vector]) -> None:
        """Resumes from a checkpoint.

        Args:
            arrays: what `arrays` gave; empty where servers were others.
            pulled: by worker, this shard as it was sent last.
        """

    def drain(self) -> None:
        for link in self._links:
            self._waiter.until(link.header_out.Test)
        for segment in range(len(self._ranges)):
            self.settle(segment)
        for request, _ in self._published:
            self._waiter.until(request.Test)
        self._published.clear()

    def close(self) -> None:
        """Frees all requests; what still waits is cancelled. Blocks for a moment at most."""
        receives = [*self._receives, *(slot for link in self._links for slot in link.slots_in)]
        sends = [request for link in self._links for request in (link.header_out, *link.params_out)]
        close(receives, [*sends, *(request for request, _ in self._published)])
