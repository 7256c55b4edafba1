"""Device addresses given to an MPI that knows what they are."""

from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.device.tasks import DeviceEvent
from psgd.collectives.device.transport import Gpu, PendingRequests
from psgd.collectives.mpi.tags import Tag


class CudaAwareMpi:
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
        self._requests = PendingRequests()
        self.poll = self._requests.poll

    def send(self, gpu: Gpu, lane: int, data: NDArray[Any]) -> DeviceEvent:
        return self._requests.event(self._comm.Isend(data, self._right, Tag.LANE + lane))

    def receive(self, gpu: Gpu, lane: int, into: NDArray[Any]) -> DeviceEvent:
        return self._requests.event(self._comm.Irecv(into, self._left, Tag.LANE + lane))

    def close(self) -> None:
        """Holds nothing."""
