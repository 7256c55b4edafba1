"""One order of work on a GPU: CuPy's arithmetic, which psgd uses, on the stream that PyTorch uses."""

from typing import Any

import torch

from psgd.torch.same_memory import cupy

_FOREIGN: dict[tuple[int, int], Any] = {}
"""By GPU and address, streams of PyTorch's as CuPy's: for ever, since CuPy 14 destroys them when it drops them."""


class _Foreign:
    """A stream in the words of CUDA's stream protocol."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


class Streams:
    """Makes PyTorch's current stream CuPy's too, so that both work in the order in which they are told to.

    On the default stream of both there is nothing to do. Autograd's kernels are behind a `backward()` that has returned
    on the stream that was current at it, so nothing more is waited for.

    Args:
        device: the module's GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: Any = None  # what was CuPy's current stream
        self._known: dict[int, Any] = {}

    def use(self) -> None:
        """Makes the module's GPU the current one of this thread, and its stream."""
        cupy().cuda.Device(self._device.index).use()
        self.follow()

    def follow(self) -> None:
        """From now on CuPy's current stream is PyTorch's, behind what was started on CuPy's before. Does not block."""
        pointer = torch.cuda.current_stream(self._device).cuda_stream
        current = cupy().cuda.get_current_stream()
        if current.ptr == pointer:
            return
        if self._before is None:
            self._before = current
        if pointer not in self._known:
            self._known[pointer] = self._stream(pointer)
        _pass_on(current, self._known[pointer])

    def _stream(self, pointer: int) -> Any:
        """One of PyTorch's streams, which PyTorch never destroys, as CuPy's."""
        streams = cupy().cuda
        if not pointer:
            return streams.Stream.null
        key = self._device.index, pointer
        if key not in _FOREIGN:
            if hasattr(streams.Stream, "from_external"):
                _FOREIGN[key] = streams.Stream.from_external(_Foreign(pointer))
            else:
                _FOREIGN[key] = streams.ExternalStream(pointer, self._device.index)
        return _FOREIGN[key]

    def leave(self) -> None:
        """CuPy's current stream is again what it was before, behind all that was started. Does not block."""
        before, self._before = self._before, None
        if before is not None:
            _pass_on(cupy().cuda.get_current_stream(), before)


def _pass_on(current: Any, following: Any) -> None:
    following.wait_event(current.record(cupy().cuda.Event(disable_timing=True)))
    following.use()
