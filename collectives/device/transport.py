"""What the ring on GPUs moves segments by. Algorithms do not know which transport they run on."""

from typing import Any, Protocol

from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.arguments.operations import Operation
from psgd.collectives.device.tasks import DeviceEvent


class Gpu(Protocol):
    """What a transport and the ring need of a device; see `psgd.collectives.device.cuda.Cuda`."""

    def poll(self) -> bool:
        """Sets the events of what is done; whether there were any."""

    def scratch(self, name: str, nbytes: int) -> NDArray[Any]:
        """Device memory by name."""

    def combine(self, op: Operation, out: NDArray[Any], a: NDArray[Any], b: NDArray[Any], ranks: int) -> DeviceEvent:
        """`out = a op b`, then a mean's division where `ranks` is not 0."""

    def copy(self, to: NDArray[Any], source: NDArray[Any]) -> DeviceEvent:
        """Device to device."""

    def to_host(self, to: NDArray[Any], source: NDArray[Any]) -> DeviceEvent:
        """Device to pinned host memory."""

    def to_device(self, to: NDArray[Any], source: NDArray[Any]) -> DeviceEvent:
        """Pinned host memory to device."""

    def pin(self, memory: NDArray[Any]) -> None:
        """Makes host memory fit for that."""

    def unpin(self, memory: NDArray[Any]) -> None:
        """Takes it back."""


class Transport(Protocol):
    """Segments to the right-hand neighbour and from the left-hand one.

    Attributes:
        name: as in `Communicator.last`.
        lanes: segments under way at most: as few as fill the way, since each step of one costs the host time.
        largest: bytes of a segment at most.
        least: bytes of a segment at least, where there are several.
        opens: other processes open the memory that is sent.
    """

    name: str
    lanes: int
    largest: int
    least: int
    opens: bool

    def send(self, gpu: Gpu, lane: int, data: NDArray[Any]) -> DeviceEvent:
        """Sends memory of a GPU, which may change once that has happened."""

    def receive(self, gpu: Gpu, lane: int, into: NDArray[Any]) -> DeviceEvent:
        """Receives into memory of a GPU. In the order of the lane's sends."""

    def poll(self) -> bool:
        """Sets the events of what is done; whether there were any."""

    def close(self) -> None:
        """Lets go of what it holds."""


class PendingRequests:
    """MPI's requests, asked about all at once."""

    def __init__(self) -> None:
        self._requests: list[MPI.Request] = []
        self._events: list[DeviceEvent] = []

    def event(self, request: MPI.Request) -> DeviceEvent:
        """Set once the request is done."""
        event = DeviceEvent()
        self._requests.append(request)
        self._events.append(event)
        return event

    def poll(self) -> bool:
        """Sets the events of what is done; whether there were any."""
        if not self._requests or not (indices := MPI.Request.Testsome(self._requests)):
            return False
        done = [self._events[index] for index in indices]
        for index in sorted(indices, reverse=True):
            del self._requests[index], self._events[index]
        for event in done:  # which may start more
            event.set()
        return True
