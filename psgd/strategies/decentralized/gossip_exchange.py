"""Exchanges of two workers' parameters, after which both have moved to where the mean was. Neither waits."""

import weakref

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag

Vector = NDArray[np.floating]

PUSHES, SAMPLES, LOSS, STOP, WORDS = range(5)


class _Letter:
    """Memory of a message: lines, and parameters."""

    def __init__(self, workers: int, params: Vector) -> None:
        head = 8 * workers * WORDS
        self.data = np.zeros(head + params.nbytes, np.uint8)
        self.lines = self.data[:head].view(np.float64).reshape(workers, WORDS)
        self.params: Vector = self.data[head:].view(params.dtype)


class Exchanges:
    """One worker's exchanges, one at a time. With them goes what workers know of each other.

    Args:
        comm: the workers, for nothing else.
        params: this worker's, moved by exchanges.
        lines: as below, where some workers have died; None: of all those in `comm`, 0 at first.

    Attributes:
        active: this worker begins exchanges, with those that are not.
        passive: the ranks that are not.
        lines: of each worker its steps, their samples and losses, and whether it stops, as far as known; the caller
            writes its own.
        count: exchanges done.
        bytes_sent, bytes_received: lines included.
    """

    def __init__(self, comm: MPI.Intracomm, params: Vector, lines: NDArray[np.float64] | None = None) -> None:
        self.active = comm.rank % 2 == 0
        self.passive = list(range(1, comm.size, 2))
        self.lines = np.zeros((comm.size, WORDS)) if lines is None else lines
        self.count = self.bytes_sent = self.bytes_received = 0
        self._comm, self._params = comm, params
        self._mine, self._theirs = _Letter(len(self.lines), params), _Letter(len(self.lines), params)
        self._partner = 0
        self._status = MPI.Status()
        self._receives: list[MPI.Request] = []
        self._sends: list[MPI.Request] = []
        self.close = weakref.finalize(self, close, self._receives, self._sends)

    @property
    def idle(self) -> bool:
        """Whether none is under way."""
        return not self._receives and not self._sends

    def ask(self, partner: int) -> None:
        """Begins an exchange, on an active worker that is idle. Does not block."""
        self._partner = partner
        self._receives.append(self._comm.Irecv([self._theirs.data, MPI.BYTE], partner, Tag.REPLY))
        self._send(partner, Tag.PUSH)

    def look(self) -> None:
        """Takes what has arrived: the answer, or where this worker is passive, a request. Does not block."""
        if not self.active:
            for _ in range(0, self._comm.size, 2):  # no more than may wait
                if not self._answer():
                    return
        elif self._receives and MPI.Request.Testall([*self._receives, *self._sends]):
            self._receives.clear()
            self._sends.clear()
            self._move()

    def _answer(self) -> bool:
        """Advances an exchange as far as messages have arrived; returns whether it got an answer."""
        if not MPI.Request.Testall(self._sends):
            return False
        self._sends.clear()
        if not self._receives:
            message = self._comm.Improbe(MPI.ANY_SOURCE, Tag.PUSH, self._status)
            if message is None:
                return False
            self._partner = self._status.Get_source()
            self._receives.append(message.Irecv([self._theirs.data, MPI.BYTE]))
        if not MPI.Request.Testall(self._receives):
            return False
        self._receives.clear()
        self._send(self._partner, Tag.REPLY)
        self._move()
        return True

    def _send(self, partner: int, tag: Tag) -> None:
        mine = self._mine
        mine.lines[:], mine.params[:] = self.lines, self._params
        self._sends.append(self._comm.Isend([mine.data, MPI.BYTE], partner, tag))
        self.bytes_sent += mine.data.nbytes

    def _move(self) -> None:
        """Moves by half of how the other's parameters differ from those that were sent to it."""
        mine, theirs = self._mine, self._theirs
        np.subtract(theirs.params, mine.params, out=theirs.params)
        np.multiply(theirs.params, theirs.params.dtype.type(0.5), out=theirs.params)
        np.add(self._params, theirs.params, out=self._params)
        newer = theirs.lines[:, PUSHES] > self.lines[:, PUSHES]
        self.lines[newer] = theirs.lines[newer]
        np.maximum(self.lines[:, STOP], theirs.lines[:, STOP], out=self.lines[:, STOP])
        self.bytes_received += theirs.data.nbytes
        self.count += 1
