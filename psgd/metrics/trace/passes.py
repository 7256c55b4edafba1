"""The passes of a pipeline in a trace: which microbatch and chunk an event is, in the ring and in the file."""

from typing import Any, NamedTuple

PASSES = ("F", "B", "X", "W", "U")
"""Forward pass, backward pass, its two halves, and an optimizer step between passes."""
_CHUNKS = 64


class Pass(NamedTuple):
    """One instruction of a pipeline's schedule, as a rank did it.

    Attributes:
        start: in seconds since the run began.
        stop: its end.
        kind: one of `PASSES`.
        microbatch: from 0.
        chunk: of the rank, from 0.
    """

    start: float
    stop: float
    kind: str
    microbatch: int
    chunk: int


def number(microbatch: int, chunk: int) -> int:
    """Returns both in one number above 0, for an event's `number`; chunks from 64 on are shown as 63."""
    return 1 + microbatch * _CHUNKS + min(chunk, _CHUNKS - 1)


def arguments(kind: str, number: int) -> str:
    """Returns the rest of an event in the file: whose `number` it is, and the closing brace."""
    if kind not in PASSES:
        return f', "args": {{"step": {number}}}}}'
    microbatch, chunk = divmod(number - 1, _CHUNKS)
    return f', "args": {{"microbatch": {microbatch}, "chunk": {chunk}}}}}'


def decode(kind: str, start: int, stop: int, more: dict[str, Any]) -> Pass | None:
    """Returns an event of the file as a pass, None if it is something else.

    Args:
        kind: its name.
        start: in nanoseconds.
        stop: the same.
        more: its arguments.
    """
    if kind not in PASSES or "microbatch" not in more:
        return None
    return Pass(start / 1e9, stop / 1e9, kind, int(more["microbatch"]), int(more.get("chunk", 0)))
