"""Cutting a range of elements into near-equal parts."""

ALIGN_BYTES = 64
"""Chunks of an array begin at multiples of it, so that no two ranks write to one cache line."""


def split(n: int, parts: int, align: int = 1) -> list[range]:
    """Cuts `range(n)` into `parts` consecutive ranges of near-equal length.

    Every boundary except the last end is a multiple of `align`, so each part starts aligned. The result
    depends on the arguments alone: it is the same on every rank and in every run. Lengths differ by at most
    `align` elements plus the remainder that the last non-empty part lacks.

    Args:
        n: number of elements, at least 0.
        parts: number of ranges, at least 1; where `n` is small the last ones are empty.
        align: elements between two allowed boundaries, at least 1.

    Raises:
        ValueError: an argument is out of range.
    """
    if n < 0 or parts < 1 or align < 1:
        raise ValueError(f"split: expected n >= 0, parts >= 1, align >= 1, got n={n}, parts={parts}, align={align}")
    blocks = -(-n // align)
    base, extra = divmod(blocks, parts)
    ranges = []
    start = 0
    for part in range(parts):
        stop = start + base + (part < extra)
        ranges.append(range(min(n, start * align), min(n, stop * align)))
        start = stop
    return ranges


def segments(n: int, size: int) -> list[range]:
    """Cuts `range(n)` into ranges of `size` elements; the last may be shorter. `n == 0` gives none."""
    return [range(start, min(n, start + size)) for start in range(0, n, size)]


def first_of(n: int, parts: int, part: int, item: int) -> int:
    """Where part number `part` begins when n elements of `item` bytes are split with parts aligned to ALIGN_BYTES."""
    align = max(1, ALIGN_BYTES // item)
    blocks = -(-n // align)
    return min(n, align * (part * (blocks // parts) + min(part, blocks % parts)))
