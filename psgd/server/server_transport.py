"""A server's side of the wire over MPI, all in persistent requests made once.

A gradient that lies in memory shared with this server is read there; for the others:

Receives stand ready before their messages come: for each worker one header and a few segments (at most 4 MiB), so
data flows while the server does other work. Replies are sent from the parameters where they lie; `settle` keeps a
segment from changing under a reply. A shard of at most `INLINE_BYTES` travels in the header's own message.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.runtime.mesh import Mesh
from psgd.server.log import LogEntry, decode, encode, order_words
from psgd.server.wire import HEADER_BYTES, Header, MessageKind, pack, travels_inline, unpack

Vector = NDArray[np.floating]

WINDOW_BYTES = 4 << 20  # most memory for one worker's gradient in flight
_WITH_PAYLOAD = (int(MessageKind.INIT), int(MessageKind.PUSH))


class _Worker:
    """Buffers and requests of one worker."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        rank: int,
        params: Vector,
        ranges: Sequence[range],
        grads: Vector | None,
        inline: bool,
    ) -> None:
        payload = params.nbytes if inline else 0
        self.header = np.zeros(HEADER_BYTES + payload, np.uint8)
        self.answer = np.zeros(HEADER_BYTES + payload, np.uint8)
        self.header_view, self.answer_view = self.header.data, self.answer.data  # struct reads these faster
        self.header_in = comm.Recv_init([self.header, MPI.BYTE], rank, Tag.PUSH)
        self.header_out = comm.Send_init([self.answer, MPI.BYTE], rank, Tag.REPLY)
        self.inline_in = self.header[HEADER_BYTES:].view(params.dtype)
        self.inline_out = self.answer[HEADER_BYTES:].view(params.dtype)
        self.slots: list[Vector] = []
        self.slots_in: list[MPI.Prequest] = []
        self.parts_out: list[MPI.Prequest] = []
        self.fetched = 0  # segments fetched in all: the slot is this modulo the slots
        self.held = False  # the inline payload is still needed, so the next header may not come yet
        self.shared: list[Vector] = []
        if inline or not ranges:
            return
        for part in ranges:
            self.parts_out.append(comm.Send_init([params[part.start : part.stop], MPI.BYTE], rank, Tag.PARAMETERS))
        if grads is not None:
            self.shared = [grads[part.start : part.stop] for part in ranges]
            return
        longest = len(ranges[0])
        count = min(len(ranges) + 1, max(2, WINDOW_BYTES // (longest * params.itemsize)))
        for slot in np.empty((count, longest), params.dtype):
            self.slots.append(slot)
            self.slots_in.append(comm.Recv_init([slot, MPI.BYTE], rank, Tag.GRADIENT))

    def requests(self) -> list[MPI.Prequest]:
        return [self.header_in, self.header_out, *self.slots_in, *self.parts_out]


class MpiServerTransport:
    """Implements `psgd.server.transport.ServerTransport`.

    Args:
        mesh: who is who.
        params: the shard, 1-D and contiguous; replies are sent from it.
        ranges: its segments.
        grads: each worker's gradient for this shard where it can be read from here, else None.
        waiter: how to wait.
        follows: whether this server receives server 0's log.
        inline: small shards travel in the header's message.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        ranges: Sequence[range],
        *,
        grads: Sequence[Vector | None],
        waiter: Waiter,
        follows: bool = False,
        inline: bool = True,
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._mesh = mesh
        self._params = params
        self._ranges = ranges
        self._waiter = waiter
        self._inline = inline and travels_inline(params.nbytes)
        comm, ranks = mesh.world, [mesh.worker_rank(w) for w in range(mesh.workers)]
        self._workers = [_Worker(comm, ranks[w], params, ranges, grads[w], self._inline) for w in range(mesh.workers)]
        self._events: deque[Header | LogEntry] = deque()
        self._reading: list[list[MPI.Prequest]] = [[] for _ in ranges]
        self._receives = [worker.header_in for worker in self._workers]
        self._order = np.zeros(order_words(mesh.workers), np.int64)
        self._published: deque[tuple[MPI.Request, NDArray[np.int64]]] = deque()
        if follows:
            self._receives.append(comm.Recv_init([self._order, MPI.INT64_T], 0, Tag.ORDER))
        for worker in self._workers:
            MPI.Prequest.Startall([worker.header_in, *worker.slots_in])
        if follows:
            self._receives[-1].Start()

    def next(self) -> Header | LogEntry:
        """See `psgd.server.transport.ServerTransport`."""
        if not self._events:
            self._waiter.until(self._poll)
        return self._events.popleft()

    def _poll(self) -> bool:
        done = MPI.Request.Testsome(self._receives)
        if not done:
            return False
        for index in done:
            if index < len(self._workers):
                worker = self._workers[index]
                self.bytes_received += worker.header.nbytes
                header = unpack(worker.header_view, index, self._mesh.index)
                self._events.append(header)
                if self._inline and header.kind in _WITH_PAYLOAD:
                    worker.held = True
                else:
                    worker.header_in.Start()
            else:
                self._events.append(decode(self._order.copy(), self._mesh.workers))
                self._receives[index].Start()
        return True

    def fetch(self, worker: int, segment: int) -> Vector:
        """See `psgd.server.transport.ServerTransport`."""
        peer = self._workers[worker]
        if self._inline:
            return peer.inline_in
        if peer.shared:
            view = peer.shared[segment]
            self.bytes_received += view.nbytes
            return view
        slots = peer.slots_in
        turn = peer.fetched
        if turn:
            slots[(turn - 1) % len(slots)].Start()
        peer.fetched = turn + 1
        at = turn % len(slots)
        self._waiter.flowing(slots[at].Test)
        view = peer.slots[at][: len(self._ranges[segment])]
        self.bytes_received += view.nbytes
        return view

    def settle(self, segment: int) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        reading = self._reading[segment]
        if reading:
            for request in reading:
                self._waiter.until(request.Test)
            reading.clear()

    def reply(self, workers: Sequence[int], header: tuple[float, ...]) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        deferred = self._inline and header[5] > 0
        for index in workers:
            peer = self._workers[index]
            self._waiter.until(peer.header_out.Test)
            pack(peer.answer_view, (*header[:3], index, *header[4:]))
            if not deferred:
                self._answer(peer)

    def emit(self, workers: Sequence[int], segment: int) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        if self._inline:
            for index in workers:
                peer = self._workers[index]
                peer.inline_out[:] = self._params
                self._answer(peer)
            return
        reading = self._reading[segment]
        for index in workers:
            request = self._workers[index].parts_out[segment]
            self._waiter.until(request.Test)  # its worker asked again, so this is over or about to be
            request.Start()
            reading.append(request)
        self.bytes_sent += len(workers) * len(self._ranges[segment]) * self._params.itemsize

    def _answer(self, peer: _Worker) -> None:
        if peer.held:
            peer.held = False
            peer.header_in.Start()
        peer.header_out.Start()
        self.bytes_sent += peer.answer.nbytes

    def publish(self, action: LogEntry) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        while self._published and self._published[0][0].Test():
            self._published.popleft()
        words = np.zeros(order_words(self._mesh.workers), np.int64)
        used = encode(action, words)
        for index in range(1, self._mesh.servers):
            request = self._mesh.world.Isend([words[:used], MPI.INT64_T], self._mesh.server_rank(index), Tag.ORDER)
            self._published.append((request, words))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the wire itself has to remember at a cut, as views."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]], pulled: Mapping[int, Vector]) -> None:
        """Goes on from a cut.

        Args:
            arrays: what `arrays` gave; empty where servers were others.
            pulled: by worker, this shard as it was sent last.
        """

    def drain(self) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        for worker in self._workers:
            self._waiter.until(worker.header_out.Test)
        for segment in range(len(self._ranges)):
            self.settle(segment)
        for request, _ in self._published:
            self._waiter.until(request.Test)
        self._published.clear()

    def close(self) -> None:
        """Frees all requests; what still waits is cancelled. Blocks for a moment at most."""
        receives = [r for worker in self._workers for r in (worker.header_in, *worker.slots_in)]
        receives += self._receives[len(self._workers) :]
        sends = [r for worker in self._workers for r in (worker.header_out, *worker.parts_out)]
        close(receives, [*sends, *(request for request, _ in self._published)])
