"""Messages between two stages over MPI, in non-blocking calls; for stages on different nodes.

All receives are posted ahead, as many as the sender may have on its way. The sender copies a message first, so that
it can go on computing in the buffers.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close


class MessageOutlet:
    """The sender's end. Implements `psgd.parallel.stages.links.Outlet`.

    Args:
        comm: private to the pipeline.
        rank: of the receiver.
        tag: of this edge and direction.
        depth: most messages on their way.
        batch: most samples of a message.
        shape: of one sample.
        dtype: of the elements.
    """

    def __init__(
        self, comm: MPI.Intracomm, rank: int, tag: int, depth: int, batch: int, shape: Sequence[int], dtype: Any
    ) -> None:
        self._comm, self._rank, self._tag = comm, rank, tag
        self._staged = np.empty((depth, batch * math.prod(shape)), dtype)
        self._requests: list[MPI.Request] = [MPI.REQUEST_NULL] * depth

    def send(self, message: NDArray[Any]) -> bool:
        """Copies it and starts to send; False where all copies are still on their way."""
        for index, request in enumerate(self._requests):
            if request.Test():
                part = self._staged[index, : message.size]
                part.reshape(message.shape)[...] = message
                self._requests[index] = self._comm.Isend([part, MPI.BYTE], self._rank, self._tag)
                return True
        return False

    def progress(self) -> None:
        """Lets MPI move what is on its way."""
        MPI.Request.Testall(self._requests)

    def close(self) -> None:
        """Lets the last messages go out. Blocks for a moment at most."""
        close([], self._requests)


class MessageInlet:
    """The receiver's end. Implements `psgd.parallel.stages.links.Inlet`. Arguments as of `MessageOutlet`."""

    def __init__(
        self, comm: MPI.Intracomm, rank: int, tag: int, depth: int, batch: int, shape: Sequence[int], dtype: Any
    ) -> None:
        self._comm, self._rank, self._tag = comm, rank, tag
        self._arrays = [np.empty((batch, *shape), dtype) for _ in range(depth)]
        self._posted: deque[tuple[int, MPI.Request]] = deque()
        for slot in range(depth):
            self.release(slot)

    def arrived(self) -> bool:
        """Whether the next message is here. Messages of one tag come in the order in which they were sent."""
        return bool(self._posted) and self._posted[0][1].Test()

    def take(self, samples: int) -> tuple[int, NDArray[Any]]:
        """Returns the slot and the message, after `arrived`."""
        slot, _ = self._posted.popleft()
        return slot, self._arrays[slot][:samples]

    def release(self, slot: int) -> None:
        """The message is not needed any more: its slot receives another one."""
        request = self._comm.Irecv([self._arrays[slot], MPI.BYTE], self._rank, self._tag)
        self._posted.append((slot, request))

    def close(self) -> None:
        """Takes the receives back. Blocks for a moment at most."""
        close([request for _, request in self._posted], [])
        self._posted.clear()
