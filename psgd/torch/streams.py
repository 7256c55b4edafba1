"""One order of work on a GPU: CuPy's arithmetic, which psgd uses, on the stream that PyTorch uses."""

from typing import Any

import torch

from psgd.torch.same_memory import cupy


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
            cuda = cupy().cuda
            self._known[pointer] = cuda.ExternalStream(pointer, self._device.index) if pointer else cuda.Stream.null
        _pass_on(current, self._known[pointer])

    def leave(self) -> None:
        """CuPy's current stream is again what it was before, behind all that was started. Does not block."""
        before, self._before = self._before, None
        if before is not None:
            _pass_on(cupy().cuda.get_current_stream(), before)


def _pass_on(current: Any, following: Any) -> None:
    following.wait_event(current.record(cupy().cuda.Event(disable_timing=True)))
    following.use()
