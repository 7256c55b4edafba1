"""One line to the user, on stderr, from wherever something is to be said."""

import contextlib
import sys
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Writes `psgd: text`. A stderr that is closed, or on a full disk, must not end what is being done.

    Args:
        text: one line.
        stream: where to; None is stderr.
    """
    stream = stream or sys.stderr
    if stream is not None:  # without a stderr, print would take stdout
        with contextlib.suppress(OSError, ValueError):
            print(f"psgd: {text}", file=stream, flush=True)
