"""What a pipeline asks of its rank's GPU: memory and events that other processes can open, copies, graphs, losses."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array, address
from psgd.kernels.device import graphs
from psgd.kernels.device.events import over
from psgd.kernels.device.layers import loss as kernels


class Gpu:
    """The current GPU. Nothing but `allocate` and `settle` waits for it; all else is put on its current stream.

    Attributes:
        xp: `cupy`.
        captures: whether passes are to become CUDA graphs.
        side: as `with gpu.side:`, another stream.
    """

    def __init__(self) -> None:
        self.xp: Any = cupy
        self._launcher = graphs.launcher()
        self.captures = self._launcher is not None
        self.side: Any = cupy.cuda.Stream(non_blocking=True)

    def allocate(self, nbytes: int) -> tuple[int, str]:
        """Returns the address of new memory, and by what other processes open it. Blocks."""
        runtime = cupy.cuda.runtime
        address = runtime.malloc(max(1, nbytes))
        return address, runtime.ipcGetMemHandle(address).hex()

    def reach(self, handle: str) -> int | None:
        """Returns the address of another process's memory, or None where it cannot be mapped here."""
        try:
            return int(cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(handle)))
        except cupy.cuda.runtime.CUDARuntimeError:
            return None

    def unmap(self, address: int) -> None:
        """Ends a `reach`."""
        cupy.cuda.runtime.ipcCloseMemHandle(address)

    def free(self, address: int) -> None:
        """Ends an `allocate`."""
        cupy.cuda.runtime.free(address)

    def settle(self) -> None:
        """Returns when the GPU has done all that this process has started. Blocks."""
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.runtime.deviceSynchronize()

    def array(self, address: int, shape: Sequence[int], dtype: Any) -> Array:
        """Memory at an address as an array; it is freed by who has made it."""
        return _view(address, tuple(shape), np.dtype(dtype))

    def address(self, array: Array) -> int:
        """Where an array begins, on the GPU or on the host."""
        return address(array)

    def event(self) -> tuple[Any, str]:
        """Returns a new event, and by what other processes open it."""
        event = cupy.cuda.Event(disable_timing=True, interprocess=True)
        return event, cupy.cuda.runtime.ipcGetEventHandle(event.ptr).hex()

    def reach_event(self, handle: str) -> Any:
        """Returns another process's event for `wait`, or None where it cannot be opened here."""
        try:
            return _TheirEvent(cupy.cuda.runtime.ipcOpenEventHandle(bytes.fromhex(handle)))
        except cupy.cuda.runtime.CUDARuntimeError:
            return None

    def record(self, event: Any) -> None:
        """Marks what has been started on the current stream so far."""
        cupy.cuda.runtime.eventRecord(event.ptr, cupy.cuda.get_current_stream().ptr)

    def wait(self, event: Any) -> None:
        """What is started on the current stream from now on comes behind what the event has marked last."""
        cupy.cuda.runtime.streamWaitEvent(cupy.cuda.get_current_stream().ptr, event.ptr)

    def passed(self, event: Any) -> bool:
        """Whether what an event has marked last is done. Does not block."""
        return over(event)

    def copy(self, into: Array, source: Array) -> None:
        """Copies elements of one dtype in contiguous memory of the same size: to this GPU or to a peer, or back."""
        if not source.flags.c_contiguous:
            source = (cupy if isinstance(source, cupy.ndarray) else np).ascontiguousarray(source)
        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
        if source.nbytes:
            addresses = self.address(into), self.address(source)
            runtime.memcpyAsync(*addresses, source.nbytes, runtime.memcpyDefault, stream)

    def launcher(self, function: Callable[[], object]) -> Callable[[], None]:
        """Records what a function starts as a CUDA graph; returns what starts that."""
        assert self._launcher is not None  # who captures asks `captures` first
        return self._launcher(function)

    def staging(self, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
        """Page-locked memory on the host."""
        return _page_locked(tuple(shape), np.dtype(dtype))

    def download(self, into: np.ndarray[Any, Any], source: Array) -> None:
        """Copies to the host. Blocks until it is there."""
        self.copy(into, source)
        cupy.cuda.get_current_stream().synchronize()

    def losses(self, most: int) -> "DeviceLosses":
        """Makes a place for the losses of so many microbatches."""
        return DeviceLosses(most)


def _view(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory that others own, as kernels see it."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    memory = cupy.cuda.UnownedMemory(address, nbytes, None, cupy.cuda.runtime.getDevice())
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def _page_locked(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Memory on the host that the GPU copies from and to by itself, and that kernels can write."""
    count = int(np.prod(shape))
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(1, count * dtype.itemsize)), dtype, count).reshape(shape)


class _TheirEvent:
    """An event of another process."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class DeviceLosses:
    """Mean losses of a batch's microbatches in the order of their passes, in page-locked memory that the GPU writes to.

    Args:
        most: of them.
    """

    def __init__(self, most: int) -> None:
        self._host = _page_locked((most,), np.dtype(np.float64))
        self._device = _view(self._host.ctypes.data, (most,), self._host.dtype)
        self._steps = cupy.zeros(1, np.int64)
        self._event = cupy.cuda.Event(disable_timing=True)

    def begin(self) -> None:
        """A batch begins."""
        self._steps.fill(0)

    def start(self, logits: Array, labels: Array, scale: float) -> tuple[float, int]:
        """In place of `psgd.kernels.layers.loss.softmax_cross_entropy`: waits for nothing, and gives nothing yet."""
        kernels.start(logits, labels, scale, self._device, self._steps)
        return 0.0, 0

    def mark(self) -> None:
        """A loss has been started: `done` tells when it is there."""
        self._event.record()

    def done(self) -> bool:
        """Whether what was marked last is there. Does not block."""
        return over(self._event)

    def read(self, place: int) -> float:
        """The loss of that number since `begin`, once it is done."""
        return float(self._host[place])
