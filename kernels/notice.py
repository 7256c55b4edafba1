"""One line to the user, on stderr, from wherever something is to be said; and its words for numbers of things."""

import contextlib
import sys
from collections.abc import Iterable, Mapping
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


def counted(number: int, what: str, ending: str = "s") -> str:
    """Writes a number of things: `1 server`, `2 workers`, `2 batches` with another `ending`."""
    return f"{number:,} {what}{'' if number == 1 else ending}"


def listed(numbers: Iterable[int], what: str = "rank") -> str:
    """Writes which they are: `rank 3`, `ranks 3, 5`."""
    shown = [str(number) for number in numbers]
    return f"{what}{'' if len(shown) == 1 else 's'} {', '.join(shown)}"


def in_mesh(place: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """Writes where a rank is along the axes of a mesh that have several places: `pipe=1,tensor=0`; may be empty."""
    return ",".join(f"{axis}={at}" for axis, at in place.items() if sizes.get(axis, 1) > 1)
