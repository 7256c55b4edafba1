"""Which layers to compute a second time in backward, so that their activations need not be kept."""

import re
from collections.abc import Callable, Sequence

from psgd.kernels.errors import UsageError

Segments = tuple[range, ...]
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def read_bytes(given: str) -> int | None:
    """A number of bytes with a unit, as 80GB, 16 GiB or 1000 B; None if it is none."""
    matched = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b\s*", given, re.IGNORECASE)
    unit = None if matched is None else _UNITS.get(matched[2].lower())
    return None if matched is None or unit is None or float(matched[1]) <= 0 else int(float(matched[1]) * unit)


def is_wish(text: str) -> bool:
    """Whether it is all, a number of layers, or bytes."""
    return text == "all" or (text.isdecimal() and int(text) > 0) or read_bytes(text) is not None


def choose(wish: str, layers: int, bytes_of: Callable[[Segments], int]) -> Segments:
    """Returns the segments for a wish.

    Args:
        wish: "all": each layer by itself where that saves memory. A number: so many layers each. Bytes, as 500MB: as
            few layers as possible, the first ones, so that activations take no more.
        layers: how many there are.
        bytes_of: the activations with these segments.

    Raises:
        UsageError: no such wish, or bytes that no choice comes down to.
    """
    if wish == "all":
        return _useful(every(1, layers, layers), bytes_of)
    if wish.isdecimal() and int(wish):
        return every(int(wish), layers, layers)
    most = read_bytes(wish)
    if most is None:
        raise UsageError(f"recompute: expected all, a number of layers, or bytes as 500MB, got {wish!r}")
    if bytes_of(()) <= most:
        return ()
    sizes = [size for size in range(1, layers + 1) if bytes_of(every(size, layers, layers)) <= most]
    if not sizes:
        least = min(bytes_of(every(size, layers, layers)) for size in range(1, layers + 1))
        raise UsageError(f"recompute {wish}: activations need {least} bytes with all recomputed; take a smaller batch")
    return min((_fewest(size, layers, most, bytes_of) for size in sizes), key=_recomputed)


def _useful(chosen: Segments, bytes_of: Callable[[Segments], int]) -> Segments:
    """Leaves out segments that keep as much as they save, the last ones first."""
    least = bytes_of(chosen)
    for each in reversed(chosen):
        without = tuple(other for other in chosen if other is not each)
        if (now := bytes_of(without)) <= least:
            chosen, least = without, now
    return chosen


def _fewest(size: int, layers: int, most: int, bytes_of: Callable[[Segments], int]) -> Segments:
    """The fewest segments of a size from the front that suffice; more segments never need more."""
    low, high = 1, -(-layers // size)
    while low < high:
        middle = (low + high) // 2
        if bytes_of(every(size, layers, middle * size)) <= most:
            high = middle
        else:
            low = middle + 1
    return every(size, layers, low * size)


def every(size: int, layers: int, upto: int) -> Segments:
    """Segments of `size` layers each, the last one perhaps shorter, of the first `upto` layers."""
    return tuple(range(start, min(start + size, layers, upto)) for start in range(0, min(layers, upto), size))


def _recomputed(segments: Sequence[range]) -> int:
    return sum(map(len, segments))
