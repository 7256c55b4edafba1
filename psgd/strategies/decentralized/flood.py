"""Flooding: every worker's messages reach all others, each once and in their order, over the links of a graph.

Who gets a message for the first time hands it to its neighbours, but not to those that the origin or the one it came
from has sent it to; what comes a second time is dropped, by its number. In a complete graph nothing is handed on.

No gap can occur. Links keep order, and whether u hands messages of o on to v depends on o, u and v, and on whether v
had it before. Say that v is the first to get o's message k before k - 1, from u. Then u had k - 1 before k, and sent
it to v before k, unless v was where it came from: v had k - 1 either way.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.kernels.errors import ContractError

ORIGIN, NUMBER, KIND, SAMPLES, STOP, VALUE, VALUE2, APPLIED = range(8)
"""Words of a header: int64, but float64 from VALUE to VALUE2. From APPLIED on, one for each worker."""


class FloodKind(IntEnum):
    """What a message is."""

    UPDATE = 1  # encoded; without a payload: left out, as it was not finite
    WHOLE = 2  # an update as it is
    APPLIED = 3  # says only what its origin has applied
    REPORT = 4  # an evaluation: VALUE the accuracy, VALUE2 the loss
    DONE = 5  # the origin's last but for what it has applied: VALUE its seconds in steps, VALUE2 the others
    BYE = 6  # to a neighbour: the last on this link


class Message:
    """Memory for one message, which is received into it, filled in it and sent from it.

    Attributes:
        words: its header.
        values: the same bytes as float64.
        payload: the bytes behind it, as many as there is room.
        length: of the payload, in bytes.
        sends: requests that read from it.
    """

    def __init__(self, workers: int, room: int) -> None:
        head = 8 * (APPLIED + workers)
        self.data = np.empty(head + room, np.uint8)  # what is not used is never in memory
        self.words = self.data[:head].view(np.int64)
        self.values = self.data[:head].view(np.float64)
        self.payload = self.data[head:]
        self.length = 0
        self.sends: list[MPI.Request] = []


class _Neighbour:
    """Where a neighbour's next message is received; `request` is None once there are no more."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.message: Message
        self.request: MPI.Request | None = None


class Flood:
    """One worker's part. Messages are reused, so memory grows to what is under way at most, and then stays.

    Args:
        comm: the workers, for nothing else.
        links: each worker's neighbours.
        room: bytes of the longest payload.
        deliver: called in `poll` with each new message of another worker; it may read it until it returns.
        members: which worker each rank of `comm` is, where some have died; None: as the ranks.
        failed: called with an error of MPI, after which nothing comes or goes any more; None raises it.

    Attributes:
        bytes_sent, bytes_received: headers included.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        links: list[list[int]],
        room: int,
        deliver: Callable[[Message], None],
        members: list[int] | None = None,
        failed: Callable[[MPI.Exception], None] | None = None,
    ) -> None:
        self.bytes_sent = self.bytes_received = 0
        members = list(range(comm.size)) if members is None else members
        self._comm, self._rank, self._room, self._deliver = comm, members[comm.rank], room, deliver
        self.failed, self._workers = failed, len(links)
        self._broken = False
        self._at = {worker: rank for rank, worker in enumerate(members)}
        self._neighbours = links[self._rank]
        self._links = [_Neighbour(rank) for rank in self._neighbours]
        self._onward = [
            [rank for rank in self._neighbours if rank != origin and rank not in links[origin]]
            for origin in range(self._workers)
        ]
        self._numbers = [0] * self._workers  # of the newest message of each worker
        self._free: list[Message] = []
        self._outgoing: deque[Message] = deque()
        self._head = 8 * (APPLIED + self._workers)
        self._status = MPI.Status()
        self._left = False
        self._close = weakref.finalize(self, _abandon, self._links, self._outgoing)

    def open(self) -> None:
        """Lets messages come."""
        for link in self._links:
            with self._guard():
                self._receive(link)

    def compose(self) -> Message:
        """A message to fill. Its ORIGIN and NUMBER are set when it is sent."""
        return self._free.pop() if self._free else Message(self._workers, self._room)

    def send(self, message: Message, kind: int, length: int = 0) -> None:
        """Sends to all; it may be read on until the next `poll`. Does not block.

        Args:
            message: filled.
            kind: what it is.
            length: bytes of its payload.
        """
        self._numbers[self._rank] += 1
        message.words[:SAMPLES] = self._rank, self._numbers[self._rank], kind
        message.length = length
        self._pass_on(message, self._neighbours)

    def poll(self) -> None:
        """Takes what has arrived, delivers it and forwards it. Does not block."""
        if not self._broken:
            with self._guard():
                self._poll()

    def _poll(self) -> None:
        outgoing, free = self._outgoing, self._free
        while outgoing and MPI.Request.Testall(outgoing[0].sends):
            free.append(outgoing.popleft())
        came = True
        while came:  # MPI may have taken in only some of what waits at each test
            came = False
            for link in self._links:
                while link.request is not None and link.request.Test(self._status):
                    self._take(link)
                    came = True

    def leave(self) -> None:
        """No more is sent or handed on after this. For when all have sent all that others need. Does not block."""
        self.send(self.compose(), FloodKind.BYE)
        self._left = True

    @property
    def ended(self) -> bool:
        """Whether all neighbours have left too and all is sent; `poll` makes it true."""
        return not self._outgoing and all(link.request is None for link in self._links)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except MPI.Exception as error:
            if self.failed is None:
                raise
            self._broken = True  # a request that failed looks like one that is done
            self.failed(error)

    def close(self) -> None:
        """Takes requests back; what has not ended is lost."""
        self._close()

    def _receive(self, link: _Neighbour) -> None:
        link.message = self.compose()
        link.request = self._comm.Irecv([link.message.data, MPI.BYTE], self._at[link.rank], Tag.DATA)

    def _take(self, link: _Neighbour) -> None:
        message, nbytes = link.message, self._status.Get_count(MPI.BYTE)
        self.bytes_received += nbytes
        message.length = nbytes - self._head
        origin, number, kind = message.words[:SAMPLES].tolist()
        message.sends = []
        if kind == FloodKind.BYE:
            link.request = None
            return
        self._receive(link)  # the next one may come meanwhile
        newest = self._numbers[origin]
        if number > newest:
            if number != newest + 1 and kind != FloodKind.APPLIED:  # those may be left behind by who has left
                raise ContractError(f"decentralized: message {number} of worker {origin} came after {newest}")
            self._numbers[origin] = number
            if not self._left:
                self._pass_on(message, [rank for rank in self._onward[origin] if rank != link.rank])
            self._deliver(message)
        if not message.sends:
            self._free.append(message)

    def _pass_on(self, message: Message, ranks: list[int]) -> None:
        nbytes = self._head + message.length
        self.bytes_sent += nbytes * len(ranks)
        message.sends = []
        for rank in () if self._broken else ranks:
            with self._guard():
                message.sends.append(self._comm.Isend([message.data, nbytes, MPI.BYTE], self._at[rank], Tag.DATA))
        if ranks:
            self._outgoing.append(message)


def _abandon(links: list[_Neighbour], outgoing: deque[Message]) -> None:
    close([link.request for link in links if link.request is not None], [each for m in outgoing for each in m.sends])
