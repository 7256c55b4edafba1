"""Copies between a GPU and page-locked memory, each way on a stream of its own, beside the computation."""

from typing import Any, Protocol

from numpy.typing import NDArray

from psgd.kernels.array import Array
from psgd.nn.gates.recorded import Launcher

PIECE = 1 << 22
"""Elements that are copied at once: a large layer's update begins when its first ones have come. They are 0.3 ms of a
bus, many times what starting a copy takes."""


class Moment(Protocol):
    """A place in a stream."""

    def passed(self) -> bool:
        """Whether the GPU has come there. Does not block."""

    def wait(self) -> None:
        """Returns once it has. Lets other threads run."""


class Bus(Protocol):
    """The computing stream is that of the thread that makes it; only `up` may be called from other threads.

    Attributes:
        launcher: makes CUDA graphs for the computing stream, as `psgd.nn.gates.recorded` wants them; or None.
    """

    launcher: Launcher | None

    def device(self, size: int, dtype: Any) -> Array:
        """Zeros on the GPU."""

    def pin(self, *arrays: NDArray[Any]) -> Any:
        """Page-locks vectors on the host where the system allows it, as long as what this returns lives."""

    def mark(self) -> Moment:
        """Where the computing stream is now: behind all that was started."""

    def down(self, to: NDArray[Any], source: Array, after: Moment) -> Moment:
        """Starts copying to the host after a moment; returns when that is done."""

    def up(self, to: Array, source: NDArray[Any], after: Moment | None) -> Moment:
        """Starts copying to the GPU after a moment, or now; returns when that is done."""

    def hold(self, moment: Moment) -> None:
        """What is started from now on in the computing stream waits for this moment; the host does not."""


class CudaMoment:
    """An event of CUDA. Implements `Moment`."""

    def __init__(self, stream: Any) -> None:
        import cupy

        self.event = cupy.cuda.Event(disable_timing=True)
        self.event.record(stream)

    def passed(self) -> bool:
        from psgd.kernels.device.events import over  # imports CuPy

        return over(self.event)

    def wait(self) -> None:
        self.event.synchronize()


class CudaBus:
    """The current GPU. Implements `Bus`."""

    def __init__(self) -> None:
        import cupy

        from psgd.kernels.device import graphs  # imports CuPy

        self._device = cupy.cuda.Device()
        self._computing = cupy.cuda.get_current_stream()
        self._down, self._up = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self.launcher: Launcher | None = graphs.launcher()

    def device(self, size: int, dtype: Any) -> Array:
        import cupy

        return cupy.zeros(size, dtype)

    def pin(self, *arrays: NDArray[Any]) -> Any:
        from psgd.backend import pinned

        return pinned.Pin(*arrays)

    def mark(self) -> CudaMoment:
        return CudaMoment(self._computing)

    def down(self, to: NDArray[Any], source: Array, after: Moment) -> CudaMoment:
        from psgd.backend import pinned

        with self._down:
            self._down.wait_event(after.event)  # type: ignore[attr-defined]  # its own
            pinned.download(to, source)
        return CudaMoment(self._down)

    def up(self, to: Array, source: NDArray[Any], after: Moment | None) -> CudaMoment:
        from psgd.backend import pinned

        with self._device, self._up:  # a thread of its own begins with the first GPU
            if after is not None:
                self._up.wait_event(after.event)  # type: ignore[attr-defined]  # its own
            pinned.upload(to, source)
            return CudaMoment(self._up)

    def hold(self, moment: Moment) -> None:
        self._computing.wait_event(moment.event)  # type: ignore[attr-defined]  # its own


def zeros_pinned(like: NDArray[Any]) -> NDArray[Any]:
    """Zeros of that shape and dtype in page-locked memory."""
    from psgd.backend import pinned

    made = pinned.empty(like.shape, like.dtype)
    made.fill(0)
    return made


def pinned_copy(values: NDArray[Any]) -> NDArray[Any]:
    """The same values in page-locked memory."""
    made = zeros_pinned(values)
    made[...] = values
    return made
