"""Passes on what the ranks print, so that a stdout that cannot be written is noticed: mpiexec drops it in silence."""

import contextlib
import os
import re
import threading

from psgd.launch.output import standard_streams

_BLOCK = 1 << 16
_PATIENCE_S = 2.0  # for a process that mpiexec left behind, and that holds the pipe open
_BEGINS = b"NBC_Progress: an error "
_OF_A_DEATH = re.compile(
    _BEGINS + rb"7[57] was found during schedule 0x[0-9a-f]+ at row-offset \d+ - aborting the schedule\n\n?"
)
"""What Open MPI writes for each non-blocking collective that a death (75) or a revocation (77) ends; a line is empty
after it. Both are news to nobody where the run goes on: psgd says who died."""
_LONGEST = 200  # bytes of such a line, and more


class WithoutDeaths:
    """Leaves out lines of Open MPI on calls that a death has ended, from text that comes in pieces."""

    def __init__(self) -> None:
        self._held = b""  # perhaps the beginning of such a line
        self._empty_next = False  # the text until now ends with such a line, without the empty one

    def take(self, data: bytes) -> bytes:
        """What is to be passed on, now that this piece is here."""
        text = self._held + data
        if self._empty_next and text:
            text, self._empty_next = text.removeprefix(b"\n"), False
        for found in _OF_A_DEATH.finditer(text):
            self._empty_next = found.end() == len(text) and not text.endswith(b"\n\n")
        text = _OF_A_DEATH.sub(b"", text)
        at = _may_begin(text)
        self._held = text[at:]
        return text[:at]

    def rest(self) -> bytes:
        """What was held back, at the end."""
        held, self._held = self._held, b""
        return held


def _may_begin(text: bytes) -> int:
    """Where in a text such a line may begin whose end is not here yet; its length where nowhere."""
    at = text.rfind(_BEGINS[:4])
    if (
        at >= 0
        and b"\n" not in text[at:]
        and len(text) - at < _LONGEST
        and _BEGINS.startswith(text[at:][: len(_BEGINS)])
    ):
        return at
    return next((len(text) - n for n in (3, 2, 1) if text.endswith(_BEGINS[:n])), len(text))


class Relay:
    """A pipe whose content a thread copies to a descriptor.

    Args:
        target: the descriptor.
        filtered: without what MPI says of calls that a death has ended.

    Attributes:
        end: the pipe's end to write to, for a child process.
    """

    def __init__(self, target: int, filtered: bool = False) -> None:
        self._target = target
        self._filter = WithoutDeaths() if filtered else None
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
                self._put(data if self._filter is None else self._filter.take(data))
                self._writing = False
        if self._filter is not None:
            self._put(self._filter.rest())

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

    Args:
        survives: the job goes on without ranks that die; what MPI says of calls that a death has ended is left out.

    Attributes:
        ends: descriptors for a child's stdout and stderr.
    """

    def __init__(self, survives: bool = False) -> None:
        self._out, self._err = Relay(1), Relay(2, filtered=survives)
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
