"""Device addresses given to an MPI that knows what they are."""

from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.device.lanes import Flag
from psgd.collectives.device.transport import Gpu, Requests
from psgd.collectives.tags import Tag


class Direct:
    """Implements `Transport`.

    Args:
        comm: private.
        left: rank that this one receives from.
        right: rank that this one sends to.
    """

    name = "cuda-aware mpi"
    lanes = 2
    largest = 64 * 1024 * 1024
    least = 16 * 1024 * 1024
    opens = True

    def __init__(self, comm: MPI.Intracomm, left: int, right: int) -> None:
        self._comm = comm
        self._left, self._right = left, right
        self._requests = Requests()
        self.poll = self._requests.poll

    def send(self, gpu: Gpu, lane: int, data: NDArray[Any]) -> Flag:
        """See `Transport`."""
        return self._requests.flag(self._comm.Isend(data, self._right, Tag.LANE + lane))

    def receive(self, gpu: Gpu, lane: int, into: NDArray[Any]) -> Flag:
        """See `Transport`."""
        return self._requests.flag(self._comm.Irecv(into, self._left, Tag.LANE + lane))

    def close(self) -> None:
        """See `Transport`."""
