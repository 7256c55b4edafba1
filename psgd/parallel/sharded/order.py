"""On a GPU, exchanges run on a stream of their own, behind what was computed before they began. Imports CuPy late.

The host starts them and goes on: what needs a result is put on the caller's stream behind it. So GPUs are kept busy
however long the host takes to start things, and it waits once a step, in `settle`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from psgd.kernels.array import Array
from psgd.runtime.device_vectors import on_device

if TYPE_CHECKING:
    from psgd.collectives.fastpath.persistent import Prequest

Behind = Callable[[], AbstractContextManager[Any]]
"""Gives a context: collectives that are started in it read and write device memory after all work put on the caller's
stream so far, and beside what is put there later."""


class OrderedCall(Protocol):
    """A persistent collective, as far as exchanges use it; `Wait` orders the caller's work behind it."""

    def Start(self) -> object:
        """Starts it. Does not block."""

    def Wait(self) -> object:
        """What the caller computes from now on sees the result; at once where nothing was started."""

    def Free(self) -> object:
        """Ends it."""


def behind(like: Array) -> Behind:
    """For arrays where `like` is; on the host there is nothing to order."""
    return SideStream() if on_device(like) else contextlib.nullcontext


def ordered(behind: Behind, calls: "Sequence[Prequest]") -> Sequence[OrderedCall]:
    """Calls that are to be started in the context `behind`."""
    return [_SideCall(behind, each) for each in calls] if isinstance(behind, SideStream) else calls


def settle(behind: Behind) -> None:
    """Blocks until all that was started in its contexts is done, and waited for. Collective.

    Raises:
        Error: what `Wait` of the calls raises: one that was put on a stream cannot raise it itself.
    """
    if isinstance(behind, SideStream):
        behind.settle()


class SideStream:
    """A stream of the current GPU, and the event by which it waits for the caller's.

    Attributes:
        last: the last call that was put on it, and that the host has not waited for.
    """

    def __init__(self) -> None:
        import cupy

        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._event = cupy.cuda.Event(disable_timing=True)
        self._cupy = cupy
        self.last: Prequest | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self._event.record()
        self._stream.wait_event(self._event)
        with self._stream:
            yield

    def event(self) -> Any:
        """A new event."""
        return self._cupy.cuda.Event(disable_timing=True)

    def follow(self, event: Any) -> None:
        """The caller's stream goes on behind an event."""
        self._cupy.cuda.get_current_stream().wait_event(event)

    def synchronize(self) -> None:
        """Blocks until the GPU has done all that was put on it."""
        self._stream.synchronize()

    def settle(self) -> None:
        """As the function."""
        last, self.last = self.last, None
        if last is not None:
            last.Wait()


class _SideCall:
    """A call that the host waits for only where it cannot be put on the stream."""

    def __init__(self, side: SideStream, call: "Prequest") -> None:
        self._side, self._call = side, call
        self._event = side.event()
        self._enqueued = self._started = False

    def Start(self) -> None:
        if self._call.Enqueue():
            self._event.record()
            self._enqueued, self._side.last = True, self._call
        else:
            self._call.Start()
            self._started = True

    def Wait(self) -> None:
        if self._enqueued:
            self._side.follow(self._event)
        elif self._started:
            self._call.Wait()
        self._enqueued = self._started = False

    def Free(self) -> None:
        if self._side.last is self._call:
            self._side.last = None
        self._call.Free()
