"""Short messages of numbers between servers, any of which may die."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.runtime.mesh import Mesh

Words = NDArray[np.int64]


class Peers:
    """One server's messages to and from the others.

    Args:
        mesh: who is who.
        longest: most words in a message.
        failed: called with the error of a call that failed; raises it where no death explains it.
    """

    def __init__(self, mesh: Mesh, longest: int, failed: Callable[[MPI.Exception], None]) -> None:
        self._mesh, self._failed = mesh, failed
        self._others = [server for server in range(mesh.servers) if server != mesh.index]
        self._boxes = [np.zeros(longest, np.int64) for _ in self._others]
        self._receives: list[MPI.Request] = []
        for server, box in zip(self._others, self._boxes, strict=True):
            self._receives.append(mesh.world.Recv_init([box, MPI.INT64_T], mesh.server_rank(server), Tag.ORDER))
        self._status = MPI.Status()
        self._sends: deque[tuple[int, MPI.Request, Words]] = deque()
        MPI.Prequest.Startall(self._receives)  # type: ignore[arg-type]

    def send(self, server: int, words: Sequence[int]) -> None:
        """Sends a message. Does not block."""
        while self._sends and self._over(self._sends[0][1]):
            self._sends.popleft()
        message = np.array(words, np.int64)
        try:
            request = self._mesh.world.Isend([message, MPI.INT64_T], self._mesh.server_rank(server), Tag.ORDER)
        except MPI.Exception as error:
            self._failed(error)
        else:
            self._sends.append((server, request, message))

    def received(self) -> Iterator[tuple[int, list[int]]]:
        """The messages that have come, each with its sender. Does not block."""
        for place, server in enumerate(self._others):
            request = self._receives[place]
            while request and self._came(request):
                words = self._boxes[place][: self._status.Get_count(MPI.INT64_T)].tolist()
                request.Start()  # type: ignore[attr-defined]
                yield server, words

    def _came(self, request: MPI.Request) -> bool:
        try:
            return bool(request.Test(self._status))
        except MPI.Exception as error:
            self._failed(error)
            return False

    def lost(self, server: int) -> None:
        """Nothing is received from that server any more."""
        self._receives[self._others.index(server)] = MPI.Prequest()  # null

    def sent(self, living: set[int]) -> bool:
        """Whether all that was sent to these servers is out. Does not block."""
        while self._sends and (self._sends[0][0] not in living or self._over(self._sends[0][1])):
            self._sends.popleft()
        return not self._sends

    def _over(self, request: MPI.Request) -> bool:
        try:
            return bool(request.Test())
        except MPI.Exception as error:
            self._failed(error)
            return True

    def close(self) -> None:
        """Frees all requests. Blocks for a moment at most."""
        close([request for request in self._receives if request], [request for _, request, _ in self._sends])
