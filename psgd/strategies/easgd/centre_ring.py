"""The messages of EASGD's round-robin order: the centre on its way from each worker to the next, and a head with it."""

import weakref

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.liveness import Liveness
from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector


class CentreRing:
    """A worker's part. Creating is collective over all workers, blocks.

    The next centre is received into a buffer of its own, from the moment that the last one was used, so that the
    worker before this one need not wait long.

    Args:
        context: of the run.
        words: numbers in the head.

    Attributes:
        right: the worker to send to.
        incoming: the centre that was received last; not to be touched from `expect` to `receive`.
        centre: what to send, then what was sent last; not to be written from `send` to `wait_sent`.
        head: likewise, float64; `receive` overwrites it with the head that came.
        bytes_sent, bytes_received: in centres and heads.
    """

    def __init__(self, context: RunContext, words: int) -> None:
        workers = context.workers
        self._liveness = self._watch(context)
        self._waiter = Waiter.for_node(workers, self._liveness.check)
        self._comm = comm = workers.Dup()
        self.rank, self.size = comm.rank, comm.size
        self.right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self.bytes_sent = self.bytes_received = 0
        self.centre: Vector = np.empty_like(context.params)
        self.incoming: Vector = np.empty_like(context.params)
        self._head_in, self.head = np.zeros(words), np.zeros(words)
        self._receives = [comm.Recv_init(each, left, Tag.DATA) for each in (self._head_in, self.incoming)]
        self._sends = [comm.Send_init(each, self.right, Tag.DATA) for each in (self.head, self.centre)]
        self._close = weakref.finalize(self, close, self._receives, self._sends)
        self._here = self.rank == 0  # the centre, before its first round

    def _watch(self, context: RunContext) -> Liveness:
        """What waits call to look after the others. Collective over the workers, blocks."""
        return Liveness(context.workers, context.alarm)

    def begin(self, params: Vector, resumed: bool) -> None:
        """Brings the centre to worker 0. Collective, blocks.

        Args:
            params: all get worker 0's, which the centre begins at.
            resumed: the last worker has the restored centre and head instead; `params` stay.
        """
        if resumed:
            for array in (self.centre, self.head):
                self._waiter.soon(self._comm.Ibcast(array, self.size - 1).Test)
        else:
            self._waiter.soon(self._comm.Ibcast(params, 0).Test)
            self.centre[:] = params
        if self._here:
            self._head_in[:] = self.head
            self.incoming[:] = self.centre
        else:
            self.expect()
        self._waiter.soon(self._comm.Ibarrier().Test)  # the run's seconds count from when all are ready

    def check(self) -> None:
        """Looks after the other workers, and lets the next centre come. Does not block."""
        self._liveness.check()
        if not self._here:
            self._came()

    def receive(self) -> None:
        """Waits for the centre and its head."""
        if self._here:
            self._here = False
        else:
            self._waiter.soon(self._came)
            self.bytes_received += self.incoming.nbytes + self.head.nbytes
        self.head[:] = self._head_in

    def expect(self) -> None:
        """Lets the next centre come. Does not block."""
        MPI.Prequest.Startall(self._receives)

    def send(self) -> None:
        """Sends `centre` and `head` on. Does not block."""
        MPI.Prequest.Startall(self._sends)

    def wait_sent(self) -> None:
        """Waits until the next worker has them."""
        self._waiter.soon(self._gone)
        self.bytes_sent += self.centre.nbytes + self.head.nbytes

    def _came(self) -> bool:
        return self._liveness.passed(self._receives)

    def _gone(self) -> bool:
        return self._liveness.passed(self._sends)

    def meet(self) -> None:
        """Waits until all workers are here, after the last round; looks after them meanwhile."""
        self._waiter.soon(self._comm.Ibarrier().Test)

    def close(self) -> None:
        """No centre comes any more: frees requests and communicator."""
        self._close()
        self._liveness.close()
        self._comm.Free()
