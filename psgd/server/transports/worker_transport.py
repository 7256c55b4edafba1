"""A worker's side of the wire over MPI: one exchange with all servers, in persistent requests made once.

Gradients are sent from where the caller put them and parameters received where it reads them, with no copy between,
except where a shard is so small that it travels inside the header's message. Of a gradient that lies in memory shared
with the server only the header is sent.
"""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.split import segments
from psgd.collectives.mpi.tags import Tag
from psgd.kernels.errors import ContractError
from psgd.server.context import PushPullContext
from psgd.server.transports.mailbox import Mailbox, eager_tests, start_of, test_of
from psgd.server.wire import WHOLE, Header

Vector = NDArray[np.floating]


class _ServerLink(Mailbox):
    """Buffers and requests for one server's shard.

    Attributes:
        payload_bytes: what the next header is to say of what follows it.
        copies: the gradient is copied into the header's message.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        rank: int,
        params: Vector,
        grads: Vector,
        segment: int,
        shared: bool,
        inline: bool,
        settings: int,
    ) -> None:
        super().__init__(
            comm, rank, params, incoming=Tag.REPLY, outgoing=Tag.PUSH, inline=inline, shared=shared, settings=settings
        )
        self.copies = self.inline and not shared
        self.params, self.grads = params, grads
        self.payload_bytes = WHOLE
        self.grads_out: list[MPI.Prequest] = []
        self.params_in: list[MPI.Prequest] = []
        for part in segments(params.size, segment) if not self.inline else ():
            view, grad = params[part.start : part.stop], grads[part.start : part.stop]
            self.params_in.append(comm.Recv_init([view, MPI.BYTE], rank, Tag.PARAMETERS))
            if not shared:
                self.grads_out.append(comm.Send_init([grad, MPI.BYTE], rank, Tag.GRADIENT))


class MpiWorkerTransport:
    """Pushes to all servers and takes their answers, as one blocking exchange.

    Args:
        context: `context.params` is overwritten by replies.
        grads: the whole gradient, of the same size and dtype; read while an exchange runs.
        reached: whether each server reads `grads` where it lies; None where none does.
        inline: small shards travel in the header's message.

    Attributes:
        worker, workers: this one's index, and how many there are.
        header: for the caller to fill before an exchange; what it does not write is as before.
        bytes_sent, bytes_received: so far.
    """

    def __init__(
        self, context: PushPullContext, grads: Vector, reached: Sequence[bool] | None = None, inline: bool = True
    ) -> None:
        mesh, params, segment = context.mesh, context.params, context.segment
        self.bytes_sent = 0
        self.bytes_received = 0
        self.worker, self.workers = mesh.index, mesh.workers
        self._waiter = context.waiter
        links: list[_ServerLink] = []
        for server, part in enumerate(context.shards):
            mine, rank, shared = (
                slice(part.start, part.stop),
                mesh.server_rank(server),
                bool(reached and reached[server]),
            )
            links.append(
                _ServerLink(mesh.world, rank, params[mine], grads[mine], segment, shared, inline, context.settings)
            )
        self._links = links
        self._settings = context.optimizer.rule.settings
        self.header = links[0].outgoing
        self.header.worker = mesh.index
        self._headers_out = [link.header_out for link in links]
        self._headers_in = [link.header_in for link in links]
        self._sends = self._headers_out + [request for link in links for request in link.grads_out]
        self._params_in = [request for link in links for request in link.params_in]
        self._receives = self._headers_in + self._params_in
        # By whether gradients go with the headers, or parameters come with the answers.
        self._send = start_of(self._headers_out), start_of(self._sends)
        self._sent = test_of(self._headers_out), test_of(self._sends)
        self._receive = start_of(self._headers_in), start_of(self._receives)
        self._arrived = test_of(self._params_in) if self._params_in else bool
        self._eager = eager_tests(context.waiter)
        self._message_bytes = sum(link.nbytes_out for link in links)
        # Of one server that reads gradients where they lie, the header is in place. Who has `inline` off sends others.
        self._writes = not inline or len(links) > 1 or links[0].copies or context.settings > 0
        self._gradient_bytes = sum(link.params.nbytes for link in links if not link.copies)
        self._payload = sum(link.params.nbytes for link in links if not link.inline)

    def exchange(self, kind: int, with_grads: bool, with_params: bool = True) -> Header:
        """Sends `header` to all servers, gradients behind it if asked, and blocks until all have answered.

        Args:
            kind: what the header says.
            with_grads: whether the gradients go with it.
            with_params: whether the parameters come with the answers.

        Returns:
            Server 0's answer, with what other servers ask for added to it; valid until the next exchange. Parameters
            are in place, if they come.

        Raises:
            PeerLostError: another rank gave up (the waits raise it).
            ContractError: shards with different versions: a torn read.
        """
        links, waiter = self._links, self._waiter
        self.header.kind = kind
        if self._writes:
            self._write(with_grads)
        sent = self._sent[with_grads]
        self._send[with_grads]()  # first: the receives are posted while these are on their way
        self._receive[with_params]()
        self.bytes_sent += self._message_bytes + with_grads * self._gradient_bytes
        # Long messages move only while both sides call MPI, so this side does not sleep before its gradients are
        # out. After that it may take long until others have pushed, and sleeping is right.
        if with_grads and len(self._sends) > len(links) and not sent():
            waiter.flowing(sent)
        first: Header = links[0].incoming
        for index, link in enumerate(links):
            test = link.header_in.Test
            for _ in self._eager:
                if test():
                    break
            else:
                waiter.until(test)
            answer = link.incoming
            answer.check(self.worker, index)
            self.bytes_received += link.nbytes_in
            if link.inline:
                link.params[:] = link.payload_in
            if index:
                self._add_answer(first, answer)
        if with_params and self._payload:
            if not self._arrived():
                waiter.flowing(self._arrived)
            self.bytes_received += self._payload
        if not sent():
            waiter.flowing(sent)
        return first

    def _write(self, with_grads: bool) -> None:
        """Writes the messages: the header, which lies in the first, and gradients that travel with it."""
        links = self._links
        raw = bytes(self.header) if len(links) > 1 else b""
        for index, link in enumerate(links):
            if index:
                link.outgoing_bytes[:] = raw
                link.outgoing.shard = index
            link.outgoing.payload_bytes = link.payload_bytes
            if self._settings is not None:
                self._settings.write(link.settings)
            if link.copies and with_grads:
                link.payload_out[:] = link.grads

    def _add_answer(self, first: Header, other: Header) -> None:
        """Adds to server 0's answer what another server asks for."""
        if other.version != first.version:
            raise ContractError(
                f"worker {self.worker}: torn read: server 0 sent version {first.version}, "
                f"server {other.shard} version {other.version}"
            )
        first.stop |= other.stop
        first.leaving |= other.leaving
        first.checkpoint_request = max(first.checkpoint_request, other.checkpoint_request)

    def tell(self, kind: int) -> None:
        """Sends `header` to server 0, which does not answer. Returns once it is out."""
        self.header.kind = kind
        self._headers_out[0].Start()
        self.bytes_sent += self._links[0].nbytes_out
        self._waiter.until(self._headers_out[0].Test)

    def close(self) -> None:
        """Frees all requests; what still waits is cancelled. Blocks for a moment at most."""
        close(self._receives, self._sends)
