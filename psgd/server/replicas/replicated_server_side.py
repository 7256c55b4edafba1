"""A server's side of the wire where each shard is held twice, and servers may die.

A worker says with each message which dead servers it knows of, as it sends each server what that one holds then. A push
that was sent in ignorance of a death is answered with AGAIN, by all: the worker learns of it, and sends it anew.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import PeerLostError
from psgd.runtime.mesh import Mesh
from psgd.server.log import LogEntry
from psgd.server.replicas import moves
from psgd.server.replicas.held_link import HeldLink
from psgd.server.replicas.held_shards import HeldShards
from psgd.server.replicas.holders import Holders
from psgd.server.replicas.norm_exchange import NormExchange
from psgd.server.surviving.agreed_server_side import AgreedServerTransport
from psgd.server.surviving.hand_over import Lost, Words
from psgd.server.surviving.sequence import EventKind, OrderedEvent
from psgd.server.wire import HEADER_BYTES, Header, MessageKind

Vector = NDArray[np.floating]
_INIT, _PUSH, _BYE = int(MessageKind.INIT), int(MessageKind.PUSH), int(MessageKind.BYE)


class LostServer(NamedTuple):
    """A server has died: what `next` gives beside headers and `Lost`, at the same place on all servers."""

    server: int


class ReplicatedServerTransport(AgreedServerTransport):
    """`next` also gives `LostServer`. By then others hold what it held, and pushes that were not handed out are AGAIN.

    Args:
        mesh: who is who.
        shards: what this server holds.
        waiter: how to wait.
        grads: each worker's whole gradient where it can be read from here, else None.
        settings: how many numbers for the rule follow a push's header.

    Attributes:
        holders: who holds what, as far as the order of events has come.
        norms: adds up the norm over all shards, with clipping; else None.
    """

    def __init__(
        self, mesh: Mesh, shards: HeldShards, waiter: Waiter, grads: Sequence[Vector | None], settings: int = 0
    ) -> None:
        self.holders = Holders(mesh.servers)
        self.norms: NormExchange | None = None
        self._shards = shards
        self._dead_servers: set[int] = set()  # known here, events or not
        self._untold_servers: deque[int] = deque()
        self._answer = Header()
        self._answered: Sequence[int] = ()
        self._words: dict[int, list[Words]] = {worker: [] for worker in range(mesh.workers)}  # that may be unread
        super().__init__(mesh, shards.params, shards.ranges, waiter, grads=grads, settings=settings, inline=False)
        for worker in range(mesh.workers):
            self._link(worker).started()

    def _make_link(self, worker: int, grads: Vector | None, settings: int, whole: bool) -> HeldLink:
        link = HeldLink(self._mesh.world, self._mesh.worker_rank(worker), self._params, grads, settings)
        link.hold(0, self._ranges, self._shards.answered)
        return link

    def _link(self, worker: int) -> HeldLink:
        return cast(HeldLink, self._links[worker])

    def _look_at_all(self) -> bool:
        super()._look_at_all()
        return bool(self._agreement.decided or self._reports)

    def _keep_order(self) -> None:
        super()._keep_order()
        while self._untold_servers:
            self._agreement.server_died(self._untold_servers.popleft())
        self._send_all()

    def _note_failed(self, rank: int) -> None:
        if rank >= self._mesh.servers:
            super()._note_failed(rank)
        elif rank not in self._dead_servers:
            if not self.begun:
                raise PeerLostError(f"the process of server {rank} ended before all workers had come")
            self._dead_servers.add(rank)
            self._untold_servers.append(rank)
            self._peers.lost(rank)

    def _happened(self, event: OrderedEvent) -> Header | Lost | LostServer | None:  # type: ignore[override]
        if event.kind == EventKind.SERVER_LOST:
            self._take_over(event.who)
            return LostServer(event.who)
        found = super()._happened(event)
        if isinstance(found, Header):
            words = self._words[found.worker]
            words[:] = [each for each in words if each[0] > found.view]
        return found

    def next(self) -> Header | LogEntry | Lost | LostServer:  # type: ignore[override]
        return super().next()

    def _take_over(self, server: int) -> None:
        """A server has died: its shards go to others, and what was on its way is to be sent again."""
        self._note_failed(self._mesh.server_rank(server))
        moved = self.holders.moves(server)
        holders = Holders(self._mesh.servers, {*self.holders.lost, server})
        if lost := moves.carry_out(moved, self._shards, self._mesh, self.ended):
            self._mesh.survival.not_survived()
            raise PeerLostError(
                f"servers {server} and {lost[0].source} ended: they held shard {lost[0].shard}, and nobody else did"
            )
        self.holders = holders
        self._shards.hold(holders)
        self._ranges = self._shards.ranges
        self._reading = [[] for _ in self._ranges]
        waiting, self._here = self._here, {}
        for header in waiting.values():
            self._arrive(header)
        if self._agreement.leads:  # the one that told may have been the dead one
            for worker, words in self._words.items():
                for each in words:
                    super().tell({worker: each})

    def ended(self, server: int, request: MPI.Request) -> bool:
        """Whether a request with a server has ended well, or never will as it is dead. Blocks.

        Where another server has died, this one's word on the order may be what that server waits for. So it is given
        meanwhile.
        """
        done = False

        def over() -> bool:
            nonlocal done
            done = request.Test()
            if not done:
                self._keep_order()
            return done or server in self._dead_servers

        try:
            self.waiter.flowing(over)
        except MPI.Exception as error:
            self._notice(error)
            return False
        return done

    def _followed(self, worker: int, header: Header) -> bool:
        if header.kind != _INIT and not (header.kind == _PUSH and header.samples):
            return True
        return self._link(worker).came()

    def _arrive(self, header: Header) -> None:
        if header.kind != _BYE and header.lost_servers != self.holders.bits:
            self.bounce(header.worker)
        else:
            super()._arrive(header)

    def whole(self, worker: int) -> bool:
        return True  # else it would not have been handed out

    def fetch(self, worker: int, segment: int) -> Vector:
        link = self._link(worker)
        view = (link.shared or link.slots)[segment]
        self.bytes_received += view.nbytes
        return view

    def settle(self, segment: int) -> None:
        for worker in range(self._mesh.workers) if segment < self._shards.answered else ():
            link = self._link(worker)
            if segment < len(link.params_out) and worker not in self._dead:
                self._passed(worker, link.params_out[segment].Test, self.waiter.until)

    def bounce(self, worker: int) -> None:
        """Asks a worker to send again what it has sent, to those that hold the shards now. Does not block."""
        self._answer_with(worker, Header(kind=MessageKind.AGAIN, shard=self._mesh.index))

    def reply(self, workers: Sequence[int], header: Header) -> None:
        self._answer, self._answered = Header.from_buffer_copy(header), tuple(workers)
        for worker in workers:
            self._lay_out(worker)
        if len(self._ranges) == self._shards.answered:
            self._reply_now()

    def _reply_now(self) -> None:
        for worker in self._answered:
            self._answer_with(worker, self._answer)

    def _lay_out(self, worker: int) -> None:
        """What this server holds may have changed since it answered the worker last."""
        link = self._link(worker)
        if link.layout != len(self.holders.lost) and worker not in self._dead:
            link.hold(len(self.holders.lost), self._ranges, self._shards.answered)

    def _answer_with(self, worker: int, header: Header) -> None:
        def start() -> None:
            link = self._link(worker)
            if not link.header_out.Test():
                self.waiter.until(link.header_out.Test)
            link.outgoing_bytes[:] = bytes(header)
            link.outgoing.worker = worker
            self.bytes_sent += HEADER_BYTES
            link.expect()
            for request in link.turn:
                request.Start()
            self._awaited.add(worker)

        self._lay_out(worker)
        header.lost_servers = self.holders.bits
        self._send(worker, start)

    def emit(self, workers: Sequence[int], segment: int) -> None:
        answered = self._shards.answered
        for worker in workers if segment < answered else ():
            self._send(worker, partial(self._emit, self._link(worker).params_out[segment]))
            self.bytes_sent += len(self._ranges[segment]) * self._params.itemsize
        # The header comes last, as the worker writes its next gradient after it: here nothing reads this one any more.
        if answered <= segment == len(self._ranges) - 1:
            self._reply_now()

    def _emit(self, request: MPI.Prequest) -> None:
        if not request.Test():
            self.waiter.until(request.Test)  # its worker asked again, so this is about to be over
        request.Start()

    def tell(self, messages: Mapping[int, Words]) -> None:
        for worker, words in messages.items():
            self._words[worker].append(words)
        super().tell(messages)

    def share(self, parts: Sequence[range]) -> None:
        """Fills the whole vector with what others hold. All living servers do this at the end; blocks.

        If another dies on the way it may have holes, which workers' vectors have not.
        """
        moves.share(self._params, parts, self.holders, self._mesh, self.ended)

    def close(self) -> None:
        if self.norms is not None:
            self.norms.close()
        super().close()
