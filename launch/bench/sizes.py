"""Sizes in bytes as people write them: `4KiB`, `64MiB`, `1000`."""

import re

from psgd.kernels.errors import UsageError

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
ITEM_NBYTES = 4
MOST_NBYTES = 2**42


def parse_size(text: str) -> int:
    """Reads one size as a number of bytes, a multiple of 4: whole float32 values, at least one.

    Raises:
        UsageError: not a number with one of the known units, not whole float32 values, or too small.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(f"--sizes: expected sizes such as 4KiB,64KiB,1MiB (B, KiB, MiB, GiB), got {text!r}")
    nbytes = float(match[1]) * unit
    if nbytes > MOST_NBYTES:
        raise UsageError(f"--sizes: expected at most 4 TiB, got {text[:40]!r}")
    if nbytes < ITEM_NBYTES or nbytes % ITEM_NBYTES:
        raise UsageError(f"--sizes: expected a positive multiple of {ITEM_NBYTES} bytes, got {text!r}")
    return int(nbytes)


def parse_sizes(text: str) -> list[int]:
    """Reads a comma-separated list of sizes; the order is kept.

    Raises:
        UsageError: as `parse_size`, also for an empty list.
    """
    return [parse_size(part) for part in text.split(",")]


def parse_counts(option: str, text: str) -> list[int]:
    """Reads a comma-separated list of whole numbers of 1 or more; the order is kept.

    Args:
        option: its name, for the message.
        text: as given.

    Raises:
        UsageError: something else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"{option}: expected numbers of 1 or more, comma-separated, got {text!r}")
    return [int(part) for part in parts]


def format_size(nbytes: int) -> str:
    """Writes a number of bytes with the largest binary unit that divides it: `64 KiB`, `1000 B`."""
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def format_seconds(seconds: float | None) -> str:
    """Writes a duration with three digits in s, ms or µs; `-` where there is none."""
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
