"""A rank's newest events, in memory that was made before: recording one allocates nothing and takes below 1 us.

The memory is a file beside the trace, mapped, where one can be made there: whatever ends the process, the kernel keeps
what was written, and `psgd trace` can read it. Its blocks are allocated at once, so that a full disk shows then and not
as a signal later. Else it is anonymous memory, and the events of a killed rank are lost.
"""

import contextlib
import itertools
import json
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.errors import DataError

KINDS = (
    *("compute", "step", "push", "wait", "pull", "all-reduce", "apply"),
    *("gradient", "evaluate", "finish", "save", "write"),
    *("F", "B", "X", "W", "U"),
    "lost",
)
"""What a span may be: an event holds an index of these. Letters are a pipeline's: see `passes.py`. `lost` is no span
but a moment, in which this rank has told of the death of the rank that is its number."""

CAPACITY = 1 << 17
"""Events of a rank that are kept: the newest."""

EVENT = np.dtype([("start", "<f8"), ("stop", "<f8"), ("kind", "<i2"), ("track", "<i2"), ("number", "<i4")])
HEADER_BYTES = 4096
FORMAT = "psgd trace 1"
_PACK = struct.Struct("<ddhhi")
_SIZE = EVENT.itemsize
assert _PACK.size == _SIZE


class EventRing:
    """The events of one rank, of any of its threads.

    Args:
        path: where to map the memory; None, or a place where no file can be made, is memory of the process.
        facts: who the rank is, for readers: JSON values, short.
        capacity: events that are kept, a power of two.

    Attributes:
        path: the file, None without one.
    """

    def __init__(self, path: Path | None, facts: Mapping[str, Any], capacity: int = CAPACITY) -> None:
        size = HEADER_BYTES + capacity * EVENT.itemsize
        self.path, memory = None, None
        if path is not None:
            with contextlib.suppress(OSError):
                memory, self.path = _mapped(path, size), path
        self._memory = memory or mmap.mmap(-1, size)
        self._facts = {"format": FORMAT, "capacity": capacity, **facts}
        self._next = itertools.count().__next__  # one step of the interpreter: threads get different numbers
        self._mask = capacity - 1
        self.tell()

    def tell(self, **facts: Any) -> None:
        """Adds to what readers are told of this rank."""
        self._facts |= facts
        text = json.dumps(self._facts).encode()
        self._memory[:HEADER_BYTES] = text.ljust(HEADER_BYTES, b"\0")[:HEADER_BYTES]

    def add(self, kind: int, start: float, stop: float, track: int = 0, number: int = 0) -> None:
        """Keeps an event; the oldest goes.

        Args:
            kind: index in `KINDS`.
            start: by this process's `time.perf_counter()`.
            stop: the same.
            track: 0 for the main thread, 1 for the one that writes checkpoints.
            number: of the step, or 0; of a pipeline's pass what `psgd.metrics.trace.passes.number` returns.
        """
        place = HEADER_BYTES + (self._next() & self._mask) * _SIZE
        _PACK.pack_into(self._memory, place, start, stop, kind, track, number)

    def content(self) -> bytes:
        """Header and events, as `parse` reads them."""
        return self._memory[:]

    def remove(self) -> None:
        """Removes the file; the memory stays, for what may still be timed."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self.path = None


def _mapped(path: Path, size: int) -> mmap.mmap:
    """A new file of this size, all of it on the disk; one that an earlier run has left goes."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        os.posix_fallocate(number, 0, size)
        return mmap.mmap(number, size)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(number)


def parse(content: bytes, where: str = "trace") -> tuple[dict[str, Any], NDArray[Any]]:
    """What a rank has recorded: its facts, and its events in the order of their starts, those that are whole.

    Args:
        content: of `EventRing.content`, or of a file that a rank has left.
        where: names it in an error.

    Raises:
        DataError: it is none.
    """
    try:
        facts = json.loads(content[:HEADER_BYTES].rstrip(b"\0"))
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']!r}, expected {FORMAT!r}")
        events = np.frombuffer(content, EVENT, int(facts["capacity"]), HEADER_BYTES)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: expected what a rank of a traced run has recorded: {error}") from None
    whole = (events["start"] > 0) & (events["stop"] >= events["start"])
    whole &= (events["kind"] >= 0) & (events["kind"] < len(KINDS)) & np.isfinite(events["stop"])
    events = events[whole]
    # Of two that begin together the longer one encloses the other.
    return facts, events[np.lexsort((-events["stop"], events["start"], events["track"]))]
