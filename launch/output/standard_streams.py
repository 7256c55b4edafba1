"""Stdout and stderr of the command: there whatever the caller has closed, and nothing that is lost is lost silently.

A result that cannot be written is an `OutputError`: one line, and an exit code that is not 0. What stderr loses is only
said in vain. Both write any name of a file, as the system has it, whatever their encoding lacks.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from psgd.kernels.errors import OutputError
from psgd.kernels.notice import say
from psgd.runtime.new_files import AS_NAMES

Failed = Callable[[OSError], None]


class _Raw(io.FileIO):
    """A descriptor whose failing writes are told to a function; when it returns, they are given up."""

    def __init__(self, number: int, failed: Failed) -> None:
        super().__init__(number, "w", closefd=False)
        self._failed = failed

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self._failed(error)
            return memoryview(data).nbytes


def text(number: int, failed: Failed, encoding: str | None = None, by_line: bool = True) -> TextIO:
    """A text stream to a descriptor.

    Args:
        number: the descriptor, which stays open.
        failed: is called when a write fails; what it raises comes out of that write.
        encoding: as for `open`.
        by_line: each line is written at once.
    """
    buffer = io.BufferedWriter(_Raw(number, failed))
    return io.TextIOWrapper(buffer, encoding, AS_NAMES, line_buffering=by_line)


def lost(error: OSError) -> OutputError:
    """The error of a stdout that cannot be written."""
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror
    return OutputError(f"stdout: the output could not be written: {reason}")


def lose_output(error: OSError) -> NoReturn:
    """Raises it."""
    raise lost(error) from error


def lose_silently(error: OSError) -> None:
    """Does nothing: for stderr, where there is nobody left to be told."""


def prepare() -> None:
    """Opens what is closed of descriptors 0 to 2, and puts such streams on them. Before anything opens a file.

    Else the next file that is opened would become stdout. A closed stdout stays one that cannot be written.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY), True)
    if sys.stdout is sys.__stdout__:
        sys.stdout = text(1, lose_output, _encoding(sys.stdout), os.isatty(1))
    if sys.stderr is sys.__stderr__:
        sys.stderr = text(2, lose_silently, _encoding(sys.stderr))


def _encoding(stream: TextIO | None) -> str | None:
    """A stream's own; UTF-8 in place of ASCII, in which click would write question marks."""
    found = None if stream is None else stream.encoding
    return "utf-8" if found is not None and found.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968", "646") else found


def finish(code: int) -> int:
    """Writes what is left of stdout; returns the exit code, which is not 0 where that fails."""
    try:
        sys.stdout.flush()
    except OutputError as error:
        return give_up(error, code)
    return code


def give_up(error: OutputError, code: int = 0) -> int:
    """Says in one line that output is lost, and returns the exit code; what is still to be printed goes nowhere."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    say(f"error: {error}")
    return code or 1
