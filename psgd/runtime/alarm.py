"""The alarm: how a rank that fails reaches the others, whatever they and it were doing.

It has a tag, buffers and receives of its own, so that it can be rung in the middle of an exchange, and every wait
looks for it. A worker rings at all servers, a server at all workers. A rank that hears it leaves and rings in turn, so
all ranks end, with the same first cause. Of errors that all ranks are to raise alike the text goes with it.
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.kernels.errors import ContractError, DivergedError, Error, PeerLostError

_ALIKE = (ContractError, DivergedError)
"""Errors that the others raise too; of all else they learn that this rank is lost."""
_CAUSE, _KIND, _LENGTH, _HEAD = range(4)  # words in front of the text
_TEXT_BYTES = 1000


def cause_message(cause: int) -> str:
    """What every rank says of a cause: a worker's index, or -1 minus a server's."""
    if cause >= 0:
        return f"worker {cause} left psgd.connect with an error; that rank's own output says which"
    return f"server {-1 - cause} failed inside psgd.connect; that rank's own output says why"


class Alarm:
    """One rank's alarm towards its peers.

    Args:
        comm: the private communicator.
        peers: ranks to tell and to hear.
        cause: what this rank is called if it is the first: its index as a worker, -1 minus its index as a server.
        alike: errors that the peers are to raise too, the special ones before the general ones.
        message: what every rank says of a cause.

    Attributes:
        lets_die: that a peer is dead is no alarm: others see to it.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        peers: Sequence[int],
        cause: int,
        alike: Sequence[type[Error]] = _ALIKE,
        message: Callable[[int], str] = cause_message,
    ) -> None:
        self._alike, self._message = tuple(alike), message
        words = _HEAD + _TEXT_BYTES // 8
        self._said = np.zeros(words, np.int64)
        self._said[_CAUSE] = cause
        self._heard = np.zeros((len(peers), words), np.int64)
        self._out = [comm.Send_init([self._said, MPI.INT64_T], peer, Tag.ALARM) for peer in peers]
        self._in = [comm.Recv_init([self._heard[i], MPI.INT64_T], peer, Tag.ALARM) for i, peer in enumerate(peers)]
        self.lets_die = False
        self._rung = False
        self._lock = threading.Lock()
        self._raised: set[int] | None = None  # threads that have raised; None while no peer has rung
        if self._in:
            MPI.Prequest.Startall(self._in)

    def check(self) -> None:
        """Raises if a peer has rung, once in each thread that looks. Does not block.

        Threads that carry collectives forward look too, those of other communicators as well: whichever hears it
        first must not keep it from the one that trains.

        Raises:
            PeerLostError: names the first cause.
            ContractError, DivergedError: the first cause was one, with the same text.
        """
        thread = threading.get_ident()
        with self._lock:
            index, rung = self._look()
            if rung and index != MPI.UNDEFINED:
                self._said[:] = self._heard[index]
                self._raised = set()
            if self._raised is None or thread in self._raised:
                return
            self._raised.add(thread)
        lost = PeerLostError(self._message(int(self._said[_CAUSE])))
        kind, length = self._said[[_KIND, _LENGTH]].tolist()
        if not 0 < kind <= len(self._alike):
            raise lost
        text = self._said[_HEAD:].tobytes()[: max(0, length)].decode(errors="replace")
        raise self._alike[kind - 1](text) from lost

    def _look(self) -> tuple[int, bool]:
        try:
            return MPI.Request.Testany(self._in)
        except MPI.Exception as error:  # said once of each of the dead
            if not self.lets_die:
                raise
            from psgd.runtime.ulfm.deaths import means_death

            if means_death(error):
                return MPI.UNDEFINED, False
            raise

    advance = check  # so that the waits of collectives look too, as one of their BACKGROUND

    def ring(self, error: BaseException | None = None) -> None:
        """Sends the alarm to all peers, once. Does not block.

        Args:
            error: that makes this rank leave; not read where another has rung before.
        """
        if not self._rung and self._out:
            self._rung = True
            if self._raised is None:
                self._write(error)
            MPI.Prequest.Startall(self._out)

    def _write(self, error: BaseException | None) -> None:
        for kind, each in enumerate(self._alike, 1):
            if isinstance(error, each):
                text = str(error).encode()[:_TEXT_BYTES].decode(errors="ignore").encode()  # no half of a letter
                self._said[[_KIND, _LENGTH]] = kind, len(text)
                self._said[_HEAD:].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
                return

    def close(self) -> None:
        """Takes the receives back; after `ring`, lets the messages go out."""
        with self._lock:
            close(self._in, self._out)
            self._in = []
