"""Messages between the ranks of a collective call, the first of each pair preceded by a header that is checked."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.arguments.descriptor import agree
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Test
from psgd.collectives.shm import layout

LIMIT = 2**30  # elements in one message: MPI counts them in 32 bits


class Channel:
    """Point-to-point messages of one group of ranks, for one call at a time.

    Args:
        comm: psgd's own communicator.
        ranks: of the group, as numbered in `comm`; None takes all.

    Attributes:
        rank: this rank's place in the group.
        size: ranks in the group.
    """

    def __init__(self, comm: MPI.Intracomm, ranks: Sequence[int] | None = None) -> None:
        self._comm = comm
        self._ranks = list(range(comm.size)) if ranks is None else list(ranks)
        self.size = len(self._ranks)
        self.rank = self._ranks.index(comm.rank)
        self._descriptor: NDArray[np.int64] | None = None
        self._sent: set[int] = set()
        self._firsts: dict[int, _First] = {}
        self._scratch: dict[str, NDArray[np.uint8]] = {}

    def begin(self, descriptor: NDArray[np.int64] | None, call: int = 0) -> None:
        """Begins a call.

        Args:
            descriptor: its first messages carry a copy; None sends no headers, where ranks agreed already.
            call: its number, the same on all ranks: a message of another one is noticed.
        """
        self._descriptor = None if descriptor is None else descriptor.copy()
        if self._descriptor is not None:
            self._descriptor[layout.CALL] = call
        self._sent.clear()
        self._firsts.clear()

    def send(self, to: int, data: NDArray[Any]) -> Test:
        """Starts to send a 1-D contiguous array, which must stay as it is until the test is true."""
        rank = self._ranks[to]
        if self._descriptor is None or to in self._sent:
            return self._sending(rank, data)
        self._sent.add(to)
        first = self._comm.Isend(self._descriptor, rank, Tag.DATA)
        second = self._sending(rank, data)
        return _Both(first.Test, second)

    def receive(self, source: int, into: NDArray[Any]) -> Test:
        """Starts to receive an array of the size and dtype of `into`.

        The test raises Mismatch where the header that came with it is of another call.
        """
        rank = self._ranks[source]
        if self._descriptor is None:
            return self._receiving(rank, into)
        first = self._firsts.get(source)
        if first is None:
            header = np.empty(layout.DESCRIPTOR_WORDS, np.int64)
            test = self._comm.Irecv(header, rank, Tag.DATA).Test
            first = self._firsts[source] = _First(rank, test, header, self._descriptor)
        return first.then(lambda: self._receiving(rank, into))

    def poll(self) -> None:
        """Starts receives whose headers have arrived, whatever this rank is waiting for: its peers wait for them.

        Raises:
            Mismatch: a header is of another call.
        """
        for first in self._firsts.values():
            first.came()

    def scratch(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Memory of this channel that is kept between calls, by name; its contents are anything."""
        nbytes = size * np.dtype(dtype).itemsize
        memory = self._scratch.get(name)
        if memory is None or memory.size < nbytes:
            memory = self._scratch[name] = np.empty(nbytes, np.uint8)
        return memory[:nbytes].view(dtype)

    def _sending(self, rank: int, data: NDArray[Any]) -> Test:
        if data.size <= LIMIT:
            return self._comm.Isend(data, rank, Tag.DATA).Test
        return _All([self._comm.Isend(part, rank, Tag.DATA) for part in _parts(data)])

    def _receiving(self, rank: int, into: NDArray[Any]) -> Test:
        if into.size <= LIMIT:
            return self._comm.Irecv(into, rank, Tag.DATA).Test
        return _All([self._comm.Irecv(part, rank, Tag.DATA) for part in _parts(into)])


def _parts(data: NDArray[Any]) -> list[NDArray[Any]]:
    return [data[start : start + LIMIT] for start in range(0, data.size, LIMIT)]


class _Both:
    """True once two tests were; each is asked until it was true once."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Test, second: Test) -> None:
        self._first: Test | None = first
        self._second = second

    def __call__(self) -> bool:
        if self._first is not None:
            if not self._first():
                return False
            self._first = None
        return self._second()


class _First:
    """What comes from one rank in a call: its header, and data that is received only once the header agrees.

    Open MPI writes a message that is too long beyond the end of its memory, so no data may come unchecked. Receives
    that are asked for meanwhile start in their order, since messages are matched in the order of their receives.
    """

    __slots__ = ("_descriptor", "_header", "_rank", "_test", "_waiting")

    def __init__(self, rank: int, test: Test, header: NDArray[np.int64], descriptor: NDArray[np.int64]) -> None:
        self._rank = rank
        self._test = test
        self._header = header
        self._descriptor = descriptor
        self._waiting: list[_Later] | None = []

    def then(self, start: Callable[[], Test]) -> Test:
        """Starts a receive now or when the header has arrived."""
        if self._waiting is None:
            return start()
        later = _Later(self, start)
        self._waiting.append(later)
        return later

    def came(self) -> bool:
        """Whether the header has arrived; the first time, all receives that waited for it are started."""
        if self._waiting is None:
            return True
        if not self._test():
            return False
        ours, theirs = self._descriptor, self._header
        if ours[layout.CALL] != theirs[layout.CALL] or not agree(ours, theirs):
            raise Mismatch(call=int(theirs[layout.CALL]), peer=(self._rank, theirs))
        waiting, self._waiting = self._waiting, None
        for later in waiting:
            later.begin()
        return True


class _Later:
    """A receive that starts once its first header has arrived."""

    __slots__ = ("_first", "_start", "_test")

    def __init__(self, first: _First, start: Callable[[], Test]) -> None:
        self._first = first
        self._start = start
        self._test: Test | None = None

    def begin(self) -> None:
        """Starts it."""
        self._test = self._start()

    def __call__(self) -> bool:
        if self._test is None:
            self._first.came()
        return self._test is not None and self._test()


class _All:
    """True once all requests are done."""

    __slots__ = ("_requests",)

    def __init__(self, requests: list[MPI.Request]) -> None:
        self._requests = requests

    def __call__(self) -> bool:
        while self._requests and self._requests[0].Test():
            self._requests.pop(0)
        return not self._requests
