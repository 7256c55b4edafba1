import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.collectives.mpi.split import segments, split


@given(st.integers(0, 100_003), st.integers(1, 40), st.integers(1, 64))
def test_split_covers_in_order_and_aligned(n, parts, align):
    ranges = split(n, parts, align)
    assert len(ranges) == parts
    assert ranges[0].start == 0
    assert ranges[-1].stop == n
    for left, right in itertools.pairwise(ranges):
        assert left.stop == right.start
    assert all(r.start % align == 0 or r.start == n for r in ranges)


@given(st.integers(10_000, 10_000_000), st.integers(1, 16))
def test_split_is_near_equal(n, parts):
    lengths = [len(r) for r in split(n, parts, 16)]
    assert max(lengths) / (n / parts) <= 1.1


@pytest.mark.parametrize(
    ("n", "parts", "expected"),
    [
        (0, 3, [(0, 0), (0, 0), (0, 0)]),
        (2, 3, [(0, 1), (1, 2), (2, 2)]),
        (10, 3, [(0, 4), (4, 7), (7, 10)]),
    ],
)
def test_split_by_hand(n, parts, expected):
    assert [(r.start, r.stop) for r in split(n, parts)] == expected


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_split_refuses(arguments):
    with pytest.raises(ValueError, match="expected n >= 0, parts >= 1, align >= 1"):
        split(*arguments)


def test_segments():
    assert segments(0, 4) == []
    assert segments(9, 4) == [range(0, 4), range(4, 8), range(8, 9)]
