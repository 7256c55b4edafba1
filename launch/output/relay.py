"""Passes on what the ranks print, so that a stdout that cannot be written is noticed: mpiexec drops it in silence."""

import contextlib
import os
import threading

from psgd.launch.output import standard_streams

_BLOCK = 1 << 16
_PATIENCE_S = 2.0  # for a process that mpiexec left behind, and that holds the pipe open


class Relay:
    """A pipe whose content a thread copies to a descriptor.

    Args:
        target: the descriptor.

    Attributes:
        end: the pipe's end to write to, for a child process.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._source, self.end = os.pipe()
        self._error: OSError | None = None
        self._writing = False
        self._thread = threading.Thread(target=self._copy, name="psgd-relay", daemon=True)

    def start(self) -> None:
        """Begins to copy; `end` is the child's alone now."""
        os.close(self.end)
        self._thread.start()

    def _copy(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._source, _BLOCK):
                self._writing = True
                self._put(data)
                self._writing = False

    def _put(self, data: bytes) -> None:
        """Writes all, or drops it where an earlier write has failed: the ranks must not wait for a reader."""
        rest = memoryview(data)
        while rest and self._error is None:
            try:
                rest = rest[os.write(self._target, rest) :]
            except OSError as error:
                self._error = error

    def finish(self, waits: bool = True) -> OSError | None:
        """Ends when all is copied; returns why something could not be written, the first time, or None.

        Args:
            waits: for a reader that takes its time, as long as it takes.
        """
        self._thread.join(_PATIENCE_S)
        while self._thread.is_alive() and self._writing and waits:
            self._thread.join(_PATIENCE_S)
        error, self._error = self._error, None
        return error


class Relays:
    """Stdout and stderr of a job, passed on; its stdout must get through, its stderr need not.

    MPICH's launcher would end the job for a stderr that cannot be written.

    Attributes:
        ends: descriptors for a child's stdout and stderr.
    """

    def __init__(self) -> None:
        self._out, self._err = Relay(1), Relay(2)
        self.ends = self._out.end, self._err.end

    def start(self) -> None:
        """Begins, once the child has the ends."""
        self._out.start()
        self._err.start()

    def finish(self, code: int, waits: bool = True) -> int:
        """Ends when all is passed on; returns the exit code, which is not 0 where stdout could not be written."""
        self._err.finish(waits)
        error = self._out.finish(waits)
        return code if error is None else standard_streams.give_up(standard_streams.lost(error), code)
