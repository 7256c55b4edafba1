"""What a rank was doing at each moment: of spans that nest, the innermost."""

from collections.abc import Iterable, Iterator

Segment = tuple[int, int, str]
"""From, to, and what."""


def segments(spans: Iterable[Segment]) -> Iterator[Segment]:
    """Cuts nested spans into pieces that do not overlap, in the order of time: each is its span's alone.

    Args:
        spans: of one rank and thread, in any order; two of them are apart, touch, or one lies in the other.
    """
    outer: list[tuple[int, str]] = []  # ends and kinds of the spans that are open
    reached = 0
    for start, stop, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        while outer and outer[-1][0] <= start:
            end, name = outer.pop()
            if end > reached:
                yield reached, end, name
                reached = end
        if outer and start > reached:
            yield reached, start, outer[-1][1]
        reached = start
        outer.append((stop, kind))
    while outer:
        end, name = outer.pop()
        if end > reached:
            yield reached, end, name
            reached = end
