"""A worker's side of the wire where each shard is held twice, and servers may die.

Each server gets the whole of what it holds, and answers for some of it. A server that says AGAIN holds other shards
from now on: it gets the same push once more. Where a server died before its part of an answer was here, the worker asks
all for the parameters once more, so that all parts are of one version.
"""

from collections.abc import Callable

from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.kernels.errors import ContractError, PeerLostError
from psgd.runtime.ulfm.deaths import means_death
from psgd.server.context import PushPullContext
from psgd.server.replicas.holders import Holders
from psgd.server.replicas.holding_server_link import HoldingServerLink
from psgd.server.surviving.hand_over import Words
from psgd.server.surviving.worker_side import SurvivingWorkerTransport
from psgd.server.transports.gradient_memory import Gradients
from psgd.server.wire import WHOLE, Header, MessageKind

_AGAIN, _END, _INIT = int(MessageKind.AGAIN), int(MessageKind.END), int(MessageKind.INIT)


class ReplicatedWorkerTransport(SurvivingWorkerTransport):
    """Pushes to all servers that live, and takes their answers."""

    def __init__(self, context: PushPullContext, gradients: Gradients) -> None:
        assert gradients.own is not None
        mesh, reached = context.mesh, gradients.reached or [False] * context.mesh.servers
        self.bytes_sent = self.bytes_received = 0
        self.worker, self.workers = mesh.index, mesh.workers
        self.header = Header(worker=mesh.index)
        self.over = False
        self._mesh, self._view = mesh, 0
        self._failures = mesh.survival.failures
        self._dead: set[int] = set()
        self._lost = 0  # of the servers, those whose death was told here, as bits
        self._waiter = context.waiter.guarded(self._guard)
        self._settings = context.optimizer.rule.settings
        self._servers = [HoldingServerLink(context, s, gradients.own, reached[s]) for s in range(mesh.servers)]
        self._nbytes = context.params.nbytes

    @property
    def _living(self) -> list[HoldingServerLink]:
        return [link for link in self._servers if link.server not in self._dead]

    def exchange(self, kind: int, with_grads: bool, with_params: bool = True) -> Header:
        answer, whole = self._exchange_once(kind, with_grads)
        while not whole:
            if kind == _INIT:
                raise PeerLostError("a server ended before all workers had come")
            answer, whole = self._exchange_once(MessageKind.REPEAT, False)
        self._hear_of(answer)
        if self.over:
            for link in self._living:
                self._tell_one(link, MessageKind.BYE)
        return answer

    def _exchange_once(self, kind: int, with_grads: bool) -> tuple[Header, bool]:
        """Sends `header` to all and takes all answers.

        Returns:
            The first server's answer, and whether all parts of the parameters are here.
        """
        self.header.kind, self.header.view = kind, self._view
        waiting = self._living
        for link in waiting:
            self._begin(link, with_grads)
        while waiting:
            link = self._next_answer(waiting)
            if link.server in self._dead:
                waiting.remove(link)
                continue
            link.incoming.check(self.worker, link.server)
            self.bytes_received += link.nbytes_in
            if link.incoming.kind == _AGAIN:
                self._passed(link, link.sent)
                link.hold(link.incoming.lost_servers)
                self._begin(link, with_grads)
                continue
            waiting.remove(link)
            self._passed(link, link.sent)
            link.hold(link.incoming.lost_servers)
            self._call(link, link.expect)
        here = [link for link in self._living if self._passed(link, link.arrived) and self._passed(link, link.sent)]
        if not here:
            self._mesh.survival.not_survived()
            raise PeerLostError("all servers that held the parameters have died")
        first = here[0].incoming
        for link in here[1:]:
            self._add_answer(first, link.incoming)
            if link.incoming.lost_servers != first.lost_servers:
                raise ContractError(f"worker {self.worker}: servers disagree on who is dead")
        self.bytes_received += self._nbytes
        holders = Holders.of_bits(self._mesh.servers, first.lost_servers)
        came = {link.server for link in here}
        return first, all(holders.of(shard)[0] in came for shard in range(self._mesh.servers))

    def _hear_of(self, answer: Header) -> None:
        super()._hear_of(answer)
        if answer.lost_servers != self._lost:
            for server in range(self._mesh.servers):
                if (answer.lost_servers & ~self._lost) >> server & 1:
                    self._mesh.survival.lost_server(server)
            self._lost = answer.lost_servers

    def _next_answer(self, links: list[HoldingServerLink]) -> HoldingServerLink:
        """Returns once one of them has answered, or is dead. Blocks."""
        link = self._waiter.until(lambda: self._answered(links))
        assert link is not None
        return link

    def _begin(self, link: HoldingServerLink, with_grads: bool) -> None:
        """Sends what the server is to get, and expects its answer. Does not block."""

        def start() -> None:
            link.outgoing_bytes[:] = bytes(self.header)
            link.outgoing.shard, link.outgoing.lost_servers = link.server, link.bits
            link.outgoing.payload_bytes = WHOLE
            if self._settings is not None:
                self._settings.write(link.settings)
            link.header_out.Start()
            if with_grads and link.grads_out:
                MPI.Prequest.Startall(link.grads_out)
                self.bytes_sent += self._nbytes
            link.header_in.Start()
            link.expect()
            self.bytes_sent += link.nbytes_out

        self._call(link, start)

    def _call(self, link: HoldingServerLink, call: Callable[[], object]) -> None:
        try:
            call()
        except MPI.Exception as error:
            self._notice(error, link)

    def _answered(self, links: list[HoldingServerLink]) -> HoldingServerLink | None:
        """One that has answered, or is dead. Does not block."""
        for link in links:
            try:
                if link.header_in.Test() or link.server in self._dead:
                    return link
            except MPI.Exception as error:
                self._notice(error, link)
                return link
        return None

    def _passed(self, link: HoldingServerLink, test: Callable[[], bool]) -> bool:
        """Whether a test has succeeded, or never will as the server is dead. Blocks."""
        done = False

        def over() -> bool:
            nonlocal done
            done = link.server not in self._dead and test()
            return done or link.server in self._dead

        try:
            self._waiter.flowing(over)
        except MPI.Exception as error:
            self._notice(error, link)
            return False
        return done

    def _guard(self, watch: Callable[[], None]) -> None:
        """Around what waits look after: the alarm's receives fail with their sender."""
        try:
            watch()
        except MPI.Exception as error:
            self._notice(error, None)
        self._look()

    def _notice(self, error: MPI.Exception, link: HoldingServerLink | None) -> None:
        if not means_death(error):
            raise error
        if link is not None:
            self._dead.add(link.server)
        self._look()

    def _look(self) -> None:
        self._dead.update(rank for rank in self._failures.failed() if rank < self._mesh.servers)

    def _hear(self) -> Words:
        """The newest words; what a dead server has told already comes once more from another."""
        while True:
            words = self._hear_from(lambda: min(link.server for link in self._living))
            if words[0] > self._view:
                return words

    def tell(self, kind: int) -> None:
        self.header.kind = kind
        for link in self._living[:1]:
            self._tell_one(link, kind)

    def _tell_one(self, link: HoldingServerLink, kind: int) -> None:
        """Sends `header` to a server, which does not answer. Returns once it is out."""

        def start() -> None:
            link.outgoing_bytes[:] = bytes(self.header)
            link.outgoing.kind, link.outgoing.shard, link.outgoing.lost_servers = kind, link.server, link.bits
            link.header_out.Start()

        self._call(link, start)
        self._passed(link, lambda: bool(link.header_out.Test()))
        self.bytes_sent += link.nbytes_out

    def close(self) -> None:
        """Frees all requests; what still waits is cancelled. Blocks for a moment at most."""
        receives = [request for link in self._servers for request in (link.header_in, *link.params_in)]
        close(receives, [request for link in self._servers for request in (link.header_out, *link.grads_out)])
