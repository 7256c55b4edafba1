import numpy as np
import pytest

from psgd.metrics.trace.self_time import segments


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(5, 9, "a")], [(5, 9, "a")]),
        ([(0, 4, "a"), (4, 6, "b"), (8, 9, "c")], [(0, 4, "a"), (4, 6, "b"), (8, 9, "c")]),
        ([(2, 4, "b"), (0, 10, "a"), (4, 7, "c")], [(0, 2, "a"), (2, 4, "b"), (4, 7, "c"), (7, 10, "a")]),
        ([(0, 10, "a"), (0, 10, "b"), (3, 3, "c")], [(0, 3, "b"), (3, 10, "b")]),
        ([(0, 10, "a"), (0, 5, "b"), (1, 2, "c")], [(0, 1, "b"), (1, 2, "c"), (2, 5, "b"), (5, 10, "a")]),
    ],
)
def test_each_piece_is_that_of_the_innermost_span(spans, expected):
    found = [piece for piece in segments(spans) if piece[1] > piece[0]]
    assert found == expected


def test_random_spans_against_every_moment_looked_up():
    """A tree of spans: whatever is drawn, each moment belongs to the span that began last of those that hold it."""
    rng = np.random.default_rng(0)
    spans = []

    def grow(start, stop, depth):
        spans.append((start, stop, f"{len(spans)}"))
        cuts = np.sort(rng.integers(start, stop + 1, size=2 * int(rng.integers(0, 3)))).tolist()
        for a, b in zip(cuts[::2], cuts[1::2], strict=True):
            if depth and b > a and (a, b) != (start, stop):
                grow(a, b, depth - 1)

    for begin in (0, 100, 250):
        grow(begin, begin + 90, 4)
    owner = {}
    for start, stop, kind in sorted(spans, key=lambda span: (span[0], -span[1], int(span[2]))):
        owner.update(dict.fromkeys(range(start, stop), kind))
    found = {}
    for start, stop, kind in segments(spans):
        for moment in range(start, stop):
            assert moment not in found
            found[moment] = kind
    assert found == owner
