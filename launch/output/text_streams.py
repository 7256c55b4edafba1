"""Text streams for what ranks print: whole lines with a prefix, and one text to two places."""

import io
import threading
from typing import TextIO


class Lines(io.TextIOBase):
    """A text stream that passes on whole lines, each in one write behind a prefix.

    What a carriage return would have overwritten on a terminal is left out.

    Args:
        stream: where the lines go.
        prefix: what stands before each.
    """

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream, self._prefix, self._rest = stream, prefix, ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Keeps what is no whole line yet."""
        with self._lock:
            *whole, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
            self._rest = self._rest[self._rest.rfind("\r", 0, max(0, len(self._rest) - 1)) + 1 :]
            for line in whole:
                self._put(line)
        return len(text)

    def _put(self, line: str) -> None:
        shown = line.rstrip("\r").rpartition("\r")[2]
        self._stream.write(f"{self._prefix}{shown}\n")
        self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """Passes on a last line that has no end."""
        with self._lock:
            if self._rest.strip("\r"):
                self._put(self._rest)
            self._rest = ""

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False  # a bar would not be one line

    def writable(self) -> bool:
        return True


class Both(io.TextIOBase):
    """A text stream to two places."""

    def __init__(self, first: TextIO, second: TextIO) -> None:
        self._two = first, second

    def write(self, text: str) -> int:
        """To both, at once."""
        for stream in self._two:
            stream.write(text)
            stream.flush()
        return len(text)
