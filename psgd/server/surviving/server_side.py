"""A server's side of the wire, which tells of workers that died instead of failing with them.

MPI reports a death at the next call that has to do with the dead rank, or when it is asked, which is done every
`LOOK_S`. What had come from a worker before it died is handed out first; after that nothing is received from it or sent
to it. A gradient that was under way is given up: no group begins before all of its gradients are here.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import PeerLostError
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm.deaths import Deaths, means_death
from psgd.server.log import LogEntry
from psgd.server.surviving.hand_over import Lost, Words
from psgd.server.transports.server_transport import MpiServerTransport
from psgd.server.wire import Header, MessageKind

Vector = NDArray[np.floating]
LOOK_S = 0.05  # between two questions to MPI, each below a microsecond
_REPORT = int(MessageKind.REPORT)


class _GoneError(Exception):
    """Whom something was being sent to has died."""


class SurvivingServerTransport(MpiServerTransport):
    """`next` also gives `Lost`. The arguments are those of `MpiServerTransport`.

    Attributes:
        begun: all workers have come; before that a death is an error.
        waiter: waits that no death ends.
    """

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
        self._failures: Deaths = mesh.survival.failures
        self.waiter = waiter.guarded(self._guard)
        # By name: what encodes beside this class begins otherwise (`psgd.server.surviving.coded_server_side`).
        MpiServerTransport.__init__(
            self, mesh, params, ranges, self.waiter, grads=grads, inline=inline, settings=settings, whole=True
        )
        self.begun = False
        self._dead: set[int] = set()
        self._untold: deque[int] = deque()  # of the dead, those that `next` has still to give
        self._awaited = set(range(mesh.workers))  # whose next header has still to be handed out
        self._told: list[tuple[MPI.Request, Words]] = []
        self._next_look = 0.0
        self._receiver = -1  # to whom something is being sent

    def next(self) -> Header | LogEntry | Lost:  # type: ignore[override]
        while not self._events:
            if self._untold:
                return Lost(self._untold.popleft())
            self._waiter.until(self._look_at_all)
        return self._events.popleft()

    def keeps_waiting(self) -> bool:
        """Whether some worker that lives waits for an answer."""
        return len(self._awaited) + len(self._dead) < self._mesh.workers

    def _look_at_all(self) -> bool:
        """Takes in what has come and who has died; whether there is anything."""
        self._look()
        try:
            found = MPI.Request.Testsome(self._receives)
        except MPI.Exception as error:
            self._notice(error)
            # Requests that were done count as such in that call, but it does not say which they were.
            found = [worker for worker in sorted(self._awaited) if self._came(worker)]
        for worker in found or ():
            self._awaited.discard(worker)
            self._receive(worker)
        return bool(self._events or self._untold)

    def _came(self, worker: int) -> bool:
        """Whether its header is here; never where the worker turns out to be dead, too."""
        try:
            return worker not in self._dead and bool(self._links[worker].header_in.Test())
        except MPI.Exception as error:
            self._notice(error)
            return False

    def _receive(self, worker: int) -> None:
        super()._receive(worker)
        header = self._events[-1]
        if isinstance(header, Header) and header.kind == _REPORT:  # the next is awaited already, and may be here
            self._awaited.add(worker)

    def _guard(self, watch: Callable[[], None]) -> None:
        """Around what waits look after: the alarm has receives of its own, which fail with their sender."""
        try:
            watch()
        except MPI.Exception as error:
            self._notice(error)
        self._look()
        if self._receiver in self._dead:
            raise _GoneError

    def _notice(self, error: MPI.Exception) -> None:
        """Some call has failed: because of a death, or it raises."""
        if not means_death(error):
            raise error
        self._next_look = 0.0
        self._look()

    def _look(self) -> None:
        now = time.perf_counter()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for rank in sorted(self._failures.failed()):
            self._note_failed(rank)

    def _note_failed(self, rank: int) -> None:
        """This rank of the mesh's world is dead; called again and again."""
        worker = rank - self._mesh.servers
        if worker in self._dead:
            return
        if not self.begun:
            raise PeerLostError(f"the process of worker {worker} ended before all workers had come")
        self._dead.add(worker)
        self._untold.append(worker)
        self._awaited.discard(worker)
        self._receives[worker] = MPI.Prequest()  # null: never done

    def whole(self, worker: int) -> bool:
        """Returns once the worker's newest gradient is here as a whole: True; or will never be: False. Blocks."""
        link = self._links[worker]
        for ahead in range(len(self._ranges) if link.slots_in else 0):
            request = link.slots_in[(link.fetched + ahead) % len(link.slots_in)]
            if not self._passed(worker, request.Test, self._waiter.flowing):
                return False
        return True

    def _passed(self, worker: int, test: Callable[[], bool], wait: Callable[[Callable[[], bool]], object]) -> bool:
        """Returns once a request has ended, as one with a dead worker may never do. Whether it ended well. Blocks."""
        done = False

        def ended() -> bool:
            nonlocal done
            done = test()
            return done or worker in self._dead

        try:
            wait(ended)
        except MPI.Exception as error:
            self._notice(error)
            return False
        return done

    def settle(self, segment: int) -> None:
        for worker, link in enumerate(self._links):
            if link.params_out and worker not in self._dead:
                self._passed(worker, link.params_out[segment].Test, self._waiter.until)
        self._reading[segment].clear()

    def reply(self, workers: Sequence[int], header: Header) -> None:
        send = super().reply
        for worker in workers:
            self._send(worker, partial(send, (worker,), header))

    def emit(self, workers: Sequence[int], segment: int) -> None:
        send = super().emit
        for worker in workers:
            self._send(worker, partial(send, (worker,), segment))
        self._awaited.update(set(workers) - self._dead)

    def tell(self, messages: Mapping[int, Words]) -> None:
        """Sends each worker its words, ahead of its next answer. Does not block."""
        for worker, words in messages.items():
            self._send(worker, partial(self._tell, worker, words))

    def _tell(self, worker: int, words: Words) -> None:
        rank = self._mesh.worker_rank(worker)
        self._told.append((self._mesh.world.Isend([words, MPI.INT64_T], rank, Tag.VIEW), words))

    def _send(self, worker: int, send: Callable[[], None]) -> None:
        """Sends something to a worker, unless it is dead."""
        if worker in self._dead:
            return
        self._receiver = worker
        try:
            send()
        except _GoneError:
            pass
        except MPI.Exception as error:
            self._notice(error)
        finally:
            self._receiver = -1

    def drain(self) -> None:
        for worker, link in enumerate(self._links):
            self._passed(worker, link.header_out.Test, self._waiter.until)
        for segment in range(len(self._ranges)):
            self.settle(segment)

    def close(self) -> None:
        close([], [request for request, _ in self._told])
        super().close()
