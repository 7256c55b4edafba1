"""A server's buffers and requests for one worker, where it holds several shards, which may become others."""

from collections.abc import Sequence

from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.server.transports.mailbox import Mailbox
from psgd.server.transports.server_transport import Vector, WorkerLink


class HeldLink(WorkerLink):
    """There is room for each segment of a gradient, unless it is read where it lies; nothing travels inline.

    Args:
        comm: a private communicator.
        rank: of the worker.
        params: the whole vector.
        grads: the worker's whole gradient, where it can be read from here.
        settings: how many numbers for the rule follow a push's header.

    Attributes:
        layout: which `hold` it was.
    """

    def __init__(self, comm: MPI.Intracomm, rank: int, params: Vector, grads: Vector | None, settings: int) -> None:
        Mailbox.__init__(
            self,
            comm,
            rank,
            params,
            incoming=Tag.PUSH,
            outgoing=Tag.REPLY,
            inline=False,
            shared=grads is not None,
            settings=settings,
        )
        self._comm, self._rank, self._params, self._grads = comm, rank, params, grads
        self.turn = (self.header_out, self.header_in)
        self.slots, self.slots_in, self.params_out, self.shared = [], [], [], []
        self.fetched = 0
        self.layout = -1
        self._empty = True  # the slots' receives are not started

    def hold(self, layout: int, ranges: Sequence[range], answered: int) -> None:
        """From now on the server holds these ranges, and answers for so many of them, the first ones.

        The worker waits for an answer, so that nothing else is on its way from it.
        """
        close(self.slots_in, self.params_out)
        self.layout = layout
        self.slots, self.slots_in, self.params_out, self.shared = [], [], [], []
        for part in ranges[:answered]:
            view = self._params[part.start : part.stop]
            self.params_out.append(self._comm.Send_init([view, MPI.BYTE], self._rank, Tag.PARAMETERS))
        self._empty = True
        if self._grads is not None:
            self.shared = [self._grads[part.start : part.stop] for part in ranges]
            return
        for part in ranges:
            self.slots.append(self._params[part.start : part.stop].copy())
            self.slots_in.append(self._comm.Recv_init([self.slots[-1], MPI.BYTE], self._rank, Tag.GRADIENT))

    def started(self) -> None:
        """All receives were started elsewhere."""
        self._empty = False

    def expect(self) -> None:
        """Starts what receives the worker's next gradient, unless it waits for one already."""
        if self._empty and self.slots_in:
            MPI.Prequest.Startall(self.slots_in)
        self._empty = False

    def came(self) -> bool:
        """Whether a whole gradient is here; then it stays until `expect`. Does not block."""
        if not self.slots_in:
            return True
        if not self._empty:
            self._empty = MPI.Request.Testall(self.slots_in)
        return self._empty
