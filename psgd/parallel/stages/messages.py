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

_HEAD_BYTES = 64  # so that the elements begin a cache line, as the buffer does


class _Buffer:
    """Memory of one message: its batch's samples in front of it.

    Attributes:
        raw: all bytes.
        total: (1,), samples of the batch.
        array: (batch, *shape).
    """

    def __init__(self, batch: int, shape: Sequence[int], dtype: Any) -> None:
        self.raw = np.empty(_HEAD_BYTES + batch * math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
        self.total = self.raw[:8].view(np.int64)
        self.array = self.raw[_HEAD_BYTES:].view(dtype).reshape(batch, *shape)


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
        self._staged = [_Buffer(batch, shape, dtype) for _ in range(depth)]
        self._requests: list[MPI.Request] = [MPI.REQUEST_NULL] * depth

    def send(self, message: NDArray[Any], total: int) -> bool:
        """Copies it and starts to send; False where all copies are still on their way."""
        for index, request in enumerate(self._requests):
            if request.Test():
                staged = self._staged[index]
                staged.array[: len(message)] = message
                staged.total[0] = total
                part = staged.raw[: _HEAD_BYTES + message.nbytes]
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
        self._buffers = [_Buffer(batch, shape, dtype) for _ in range(depth)]
        self._posted: deque[tuple[int, MPI.Request]] = deque()
        for slot in range(depth):
            self.release(slot)

    def arrived(self) -> bool:
        """Whether the next message is here. Messages of one tag come in the order in which they were sent."""
        return bool(self._posted) and self._posted[0][1].Test()

    def take(self, samples: int) -> tuple[int, NDArray[Any], int]:
        """Returns the slot, the message and its total, after `arrived`."""
        slot, _ = self._posted.popleft()
        return slot, self._buffers[slot].array[:samples], int(self._buffers[slot].total[0])

    def release(self, slot: int) -> None:
        """The message is not needed any more: its slot receives another one."""
        request = self._comm.Irecv([self._buffers[slot].raw, MPI.BYTE], self._rank, self._tag)
        self._posted.append((slot, request))

    def close(self) -> None:
        """Takes the receives back. Blocks for a moment at most."""
        close([request for _, request in self._posted], [])
        self._posted.clear()
