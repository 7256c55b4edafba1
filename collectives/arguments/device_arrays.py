"""What callers pass as a device buffer: CuPy's, PyTorch's, JAX's and Numba's arrays, and whatever speaks DLPack."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.view import BFLOAT16, KINDS, View
from psgd.collectives.mpi.node import address_of
from psgd.kernels.errors import UsageError

_COPY = cupy.cuda.runtime.memcpyDefault
_given: list[int] = []  # the stream that the caller of the current verb has named


class DeviceView(View):
    """A device buffer of the caller's, ready for a collective.

    `logical` is an array over its addresses, for address arithmetic alone; `flat` is a copy in pinned host memory, made
    when it is first asked for, which `write_back` copies to the device.

    Attributes:
        device: number of the GPU.
        ready: an event behind the caller's work on the buffer so far.
        stream: address of the stream of that work.
    """

    __slots__ = ("_base", "_host", "_memory", "_parts", "_work", "device", "ready", "stream")

    def __init__(self, base: Any, kind: str, ready: Any, stream: int, work: Any = None) -> None:
        self._base = base
        contiguous = base.flags.c_contiguous
        if work is None:
            work = base if contiguous and base.ndim == 1 else cupy.ascontiguousarray(base).reshape(-1)
        self._work = work
        self._memory: NDArray[Any] | None = None
        self._host: NDArray[Any] | None = None
        self._parts: list[tuple[int, int]] | None = None
        self.kind = kind
        self.copied = True  # `flat` is, and `ready` is of this moment too
        self.device = int(base.device.id)
        self.ready = ready
        self.stream = stream
        self.logical = self.memory.reshape(base.shape) if contiguous else _shadow(base)

    @property
    def size(self) -> int:
        """Elements."""
        return int(self._work.size)

    @property
    def flat(self) -> NDArray[Any]:  # type: ignore[override]
        """All values, on the host. Blocks the first time."""
        if self._host is None:
            nbytes = self._work.nbytes
            with cupy.cuda.Device(self.device):
                memory = cupy.cuda.alloc_pinned_memory(max(1, nbytes))
                self._host = np.frombuffer(memory, self._work.dtype, self._work.size)
                stream = _stream()
                stream.wait_event(self.ready)
                if nbytes:
                    cupy.cuda.runtime.memcpyAsync(
                        address_of(self._host), self._work.data.ptr, nbytes, _COPY, stream.ptr
                    )
                stream.synchronize()
        return self._host

    @property
    def memory(self) -> NDArray[Any]:
        """All elements one after the other in device memory, as addresses: the caller's, or a copy on the device."""
        if self._memory is None:
            work = self._work
            self._memory = phantom(work.data.ptr, work.size, work.dtype, work)
        return self._memory

    @property
    def strided(self) -> bool:
        """Whether `memory` is a copy, which `write_back` copies to the caller's."""
        return not self._base.flags.c_contiguous

    @property
    def work(self) -> Any:
        """The same as a CuPy array."""
        return self._work

    def write_back(self) -> None:
        """Puts the result where the caller wants it: from the host if `flat` was used. Blocks."""
        with cupy.cuda.Device(self.device):
            stream = _stream()
            if self._host is not None:
                item = self._work.itemsize
                for start, stop in self._parts if self._parts is not None else [(0, self._work.size)]:
                    if stop > start:
                        to, source = self._work.data.ptr + start * item, address_of(self._host) + start * item
                        cupy.cuda.runtime.memcpyAsync(to, source, (stop - start) * item, _COPY, stream.ptr)
            if not self._base.flags.c_contiguous:
                with stream:
                    self._base[...] = self._work.reshape(self._base.shape)
            stream.synchronize()

    def restrict(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._parts = list(ranges)

    def part(self, start: int, count: int) -> "View":
        if self._base.flags.c_contiguous:
            return DeviceView(self._work[start : start + count], self.kind, self.ready, self.stream)
        return super().part(start, count)

    def reinterpret(self, dtype: np.dtype[Any], kind: str, name: str, writable: bool) -> "View":
        if not self._base.flags.c_contiguous or self._work.nbytes % dtype.itemsize:
            return super().reinterpret(dtype, kind, name, writable)
        return DeviceView(self._work.view(dtype), kind, self.ready, self.stream)

    def _with(self, flat: NDArray[Any], kind: str) -> "View":
        raise UsageError(
            "expected a contiguous device array with counts or datatypes; pass cupy.ascontiguousarray(...)"
        )


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Has views made inside take a caller's `stream=`: an object with `ptr`, `cuda_stream` or `handle`, or a number."""
    if stream is None:
        yield
        return
    _given.append(stream_address(stream))
    try:
        yield
    finally:
        _given.pop()


def stream_address(stream: Any) -> int:
    """The address of a caller's stream; 0 is CUDA's default stream.

    Raises:
        UsageError: it is none.
    """
    pointer = stream
    for name in ("ptr", "cuda_stream", "handle"):
        if hasattr(stream, name):
            pointer = getattr(stream, name)
            break
    pointer = getattr(pointer, "value", pointer)  # ctypes: Numba's
    if pointer is None:
        pointer = 0
    if not isinstance(pointer, int):
        raise UsageError(f"stream: expected a CUDA stream of CuPy, PyTorch or Numba, or its address, got {stream!r}")
    return pointer


def view(obj: Any, name: str, writable: bool) -> DeviceView:
    """Makes a view of a device array. Does not copy what is contiguous, and does not wait.

    Args:
        obj: CuPy's, PyTorch's or Numba's array, or JAX's to send only, or one with the CUDA array interface or DLPack.
        name: the argument's name, for errors.
        writable: the collective writes into it.

    Raises:
        UsageError: its elements are of no type that collectives take, it is read-only with `writable`, or
            overlaps itself.
    """
    array, kind, pointer = _array(obj, name, writable)
    kind = kind or KINDS.get(array.dtype)
    if kind is None:
        raise UsageError(f"{name}: expected elements of a plain dtype, got {array.dtype} on the device; convert it")
    if (
        writable
        and 0 in array.strides
        and array.size > 1
        and any(stride == 0 and n > 1 for stride, n in zip(array.strides, array.shape, strict=True))
    ):
        raise UsageError(
            f"{name}: expected separate memory for each element, got a device array of shape {array.shape} "
            f"and strides {array.strides}, whose elements overlap; pass a copy of it"
        )
    with cupy.cuda.Device(int(array.device.id)):
        event = cupy.cuda.Event(disable_timing=True)
        source = _given[-1] if _given else pointer
        cupy.cuda.runtime.eventRecord(event.ptr, source)
        return DeviceView(array, kind, event, source)


def _array(obj: Any, name: str, writable: bool) -> tuple[Any, str | None, int]:
    """A CuPy array on the same memory, the kind where the dtype is not enough, and the stream of the caller's work."""
    if isinstance(obj, cupy.ndarray):
        pointer = int(cupy.cuda.get_current_stream().ptr)
        if obj.dtype not in KINDS and obj.dtype.name == BFLOAT16:
            return obj.view(np.uint16), BFLOAT16, pointer
        return obj, None, pointer
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        tensor, kind = obj.detach(), None
        if tensor.dtype is torch.bfloat16:
            tensor, kind = tensor.view(torch.int16), BFLOAT16
        array = cupy.asarray(tensor)
        if kind:
            array = array.view(np.uint16)
        return array, kind, int(torch.cuda.current_stream(tensor.device).cuda_stream)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(obj, jax.Array):
        if writable:
            raise UsageError(
                f"{name}: expected writable memory to receive into, got a JAX array of dtype {obj.dtype}, which can "
                "never change; receive into a CuPy array and pass that to jax.dlpack.from_dlpack"
            )
        obj.block_until_ready()
        kind = BFLOAT16 if obj.dtype.name == BFLOAT16 else None
        if kind:
            obj = jax.lax.bitcast_convert_type(obj, np.uint16).block_until_ready()
        return cupy.from_dlpack(obj), kind, 0
    try:
        facts = getattr(obj, "__cuda_array_interface__", None)
        if facts is None:
            return cupy.from_dlpack(obj), None, int(cupy.cuda.get_current_stream().ptr)
        if writable and facts["data"][1]:
            raise UsageError(f"{name}: expected writable memory to receive into, got a read-only device array")
        return cupy.asarray(obj), None, int(facts.get("stream") or 0)
    except UsageError:
        raise
    except Exception as error:  # the library of the object may raise anything
        raise UsageError(f"{name}: expected a device array, got {type(obj).__qualname__} ({error})") from error


def _shadow(array: Any) -> NDArray[Any]:
    """A NumPy array of the same addresses, shape and strides."""
    span = phantom(array.data.ptr, 1, array.dtype, array)
    return np.lib.stride_tricks.as_strided(span, array.shape, array.strides)


_streams: dict[int, Any] = {}


def _stream() -> Any:
    """A stream for copies that the host waits for, one for each GPU."""
    device = cupy.cuda.runtime.getDevice()
    if device not in _streams:
        _streams[device] = cupy.cuda.Stream(non_blocking=True)
    return _streams[device]


def phantom(address: int, size: int, dtype: np.dtype[Any], owner: Any) -> NDArray[Any]:
    """A 1-D NumPy array over device addresses, for address arithmetic alone. It keeps `owner` alive."""
    if size == 0:
        return np.empty(0, dtype)
    return np.asarray(_Address(address, size, dtype, owner))


class _Address:
    """What NumPy makes an array of without looking at the memory."""

    def __init__(self, address: int, size: int, dtype: np.dtype[Any], owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": dtype.str, "version": 3}
