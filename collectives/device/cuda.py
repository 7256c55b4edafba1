"""All that touches CUDA here: streams, events, copies, and sums on the device.

Device memory is handled as NumPy arrays over its addresses ("phantoms"): cut like any array, given to MPI like any
array, and never read or written by the host.
"""

import contextlib
import ctypes
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.device_arrays import phantom
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.device.tasks import DeviceEvent
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.wait import Steps, Test
from psgd.kernels.device import combine
from psgd.kernels.device.events import over

_IPC_CAPABLE = 10  # CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
_COPY = cupy.cuda.runtime.memcpyDefault


class Cuda:
    """One GPU, with streams of its own: one for sums, one for copies each way.

    Methods start something and return an event that `poll` sets once it is done. All are to be called with the device
    current, which `within` sees to.

    Args:
        device: its number among the visible ones.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._device = cupy.cuda.Device(device)
        with self._device:
            self._sums, self._out, self._in = (_Stream() for _ in range(3))
        self._scratch: dict[str, NDArray[np.uint8]] = {}

    def scratch(self, name: str, nbytes: int) -> NDArray[np.uint8]:
        """Device memory that is kept between calls, by name; its contents are anything."""
        memory = self._scratch.get(name)
        if memory is None or memory.nbytes < nbytes:
            with self._device:
                # Not of CuPy's pool: MPI opens it in other processes, as a whole.
                own = cupy.cuda.Memory(max(1, nbytes))
            memory = self._scratch[name] = phantom(own.ptr, max(1, nbytes), np.dtype(np.uint8), own)
        return memory[:nbytes]

    def combine(self, op: Operation, out: NDArray[Any], a: NDArray[Any], b: NDArray[Any], ranks: int) -> DeviceEvent:
        """`out = a op b`; then what is left to do for a mean over `ranks`, unless that is 0."""
        kind, stream = _kind(out.dtype), self._sums
        combine.combine(op.code, kind, address_of(out), address_of(a), address_of(b), out.size, stream.cuda)
        if ranks and op.mean:
            combine.divide(kind, address_of(out), ranks, out.size, stream.cuda)
        return stream.event()

    def copy(self, to: NDArray[Any], source: NDArray[Any]) -> DeviceEvent:
        """Copies within the device."""
        return self._copied(to, source, self._sums)

    def to_host(self, to: NDArray[Any], source: NDArray[Any]) -> DeviceEvent:
        """Copies to pinned host memory."""
        return self._copied(to, source, self._out)

    def to_device(self, to: NDArray[Any], source: NDArray[Any]) -> DeviceEvent:
        """Copies from pinned host memory."""
        return self._copied(to, source, self._in)

    def pin(self, memory: NDArray[np.uint8]) -> None:
        """Registers host memory, so that copies run at the bus's speed and beside the host's work."""
        with self._device:
            cupy.cuda.runtime.hostRegister(address_of(memory), memory.nbytes, 1)  # 1: for all contexts

    def unpin(self, memory: NDArray[np.uint8]) -> None:
        """Takes that back; to be called before the memory goes."""
        with self._device:
            cupy.cuda.runtime.hostUnregister(address_of(memory))

    def within(self, steps: Steps) -> Steps:
        """The same steps with the device current, whichever the caller's thread has current between them."""
        while True:
            with self._device:
                test = next(steps, None)
            if test is None:
                return
            yield _Inside(self._device, test)

    @contextlib.contextmanager
    def summing(self) -> Iterator[None]:
        """Makes the stream for sums the current one."""
        with self._sums.cuda:
            yield

    def marked(self) -> DeviceEvent:
        """What was started on the stream for sums so far."""
        return self._sums.event()

    def poll(self) -> bool:
        """Sets the events of what is done; whether there were any."""
        summed, out, came = self._sums.poll(), self._out.poll(), self._in.poll()
        return summed or out or came

    def until(self, event: DeviceEvent) -> Test:
        """A test that also looks."""

        def test() -> bool:
            self.poll()
            return event.done

        return test

    def _copied(self, to: NDArray[Any], source: NDArray[Any], stream: "_Stream") -> DeviceEvent:
        if to.nbytes:
            cupy.cuda.runtime.memcpyAsync(address_of(to), address_of(source), to.nbytes, _COPY, stream.cuda.ptr)
        return stream.event()


@functools.cache
def _kind(dtype: np.dtype[Any]) -> str:
    """Kept: NumPy takes longer to give it than a GPU to start a kernel."""
    return str(dtype.name)


def opens(memory: NDArray[Any]) -> bool:
    """Whether other processes can open device memory: that of cudaMalloc, unlike that of pools or virtual memory."""
    if not memory.size:
        return True
    capable = ctypes.c_int(0)
    address = ctypes.c_void_p(address_of(memory))
    return _driver().cuPointerGetAttribute(ctypes.byref(capable), _IPC_CAPABLE, address) == 0 and capable.value == 1


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class _Stream:
    """A stream, and events for what was started on it: they are set in order, so only the oldest is looked at."""

    def __init__(self) -> None:
        self.cuda = cupy.cuda.Stream(non_blocking=True)
        self._waiting: deque[tuple[Any, DeviceEvent]] = deque()
        self._marks: list[Any] = []

    def event(self) -> DeviceEvent:
        """Set once all that was started so far is done."""
        mark = self._marks.pop() if self._marks else cupy.cuda.Event(disable_timing=True)
        mark.record(self.cuda)
        event = DeviceEvent()
        self._waiting.append((mark, event))
        return event

    def poll(self) -> bool:
        """Sets the events of what is done; whether there were any."""
        waiting, went = self._waiting, False
        while waiting and over(waiting[0][0]):
            mark, event = waiting.popleft()
            self._marks.append(mark)
            went = True
            event.set()  # which may start more
        return went


class _Inside:
    """A test that is made with a device current."""

    __slots__ = ("_device", "_test")

    def __init__(self, device: Any, test: Test) -> None:
        self._device = device
        self._test = test

    def __call__(self) -> bool:
        with self._device:
            return self._test()
