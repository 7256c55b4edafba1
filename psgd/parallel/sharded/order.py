"""On a GPU, an exchange runs on a stream of its own, behind what was computed before it began. Imports CuPy late."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from psgd.kernels.array import Array
from psgd.runtime.device_vectors import on_device

Behind = Callable[[], AbstractContextManager[Any]]
"""Gives a context: collectives that are started in it read and write device memory after all work put on the caller's
stream so far, and beside what is put there later."""


def behind(like: Array) -> Behind:
    """For arrays where `like` is; on the host there is nothing to order."""
    return _SideStream() if on_device(like) else contextlib.nullcontext


class _SideStream:
    """A stream of the current GPU, and the event by which it waits for the caller's."""

    def __init__(self) -> None:
        import cupy

        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._event = cupy.cuda.Event(disable_timing=True)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self._event.record()
        self._stream.wait_event(self._event)
        with self._stream:
            yield
