"""Layouts: who has what of an axis, by hand."""

import pytest

from psgd.parallel.tensor.layouts import FEATURES, PARTIAL, REPLICATED, SplitAlong, local_shape


@pytest.mark.parametrize(
    ("extent", "ranks", "lengths"),
    [(8, 2, [4, 4]), (7, 3, [3, 2, 2]), (13, 4, [4, 3, 3, 3]), (50257, 3, [16753, 16752, 16752]), (2, 3, [1, 1, 0])],
)
def test_any_extent_is_shared_by_any_number(extent, ranks, lengths):
    parts = FEATURES.shares(extent, ranks)
    assert [len(part) for part in parts] == lengths
    assert [i for part in parts for i in part] == list(range(extent))


def test_a_split_shortens_one_axis():
    assert local_shape(SplitAlong(-1), (4, 7), 1, 3) == (4, 2)
    assert local_shape(SplitAlong(0), (4, 7), 0, 3) == (2, 7)
    assert local_shape(REPLICATED, (4, 7), 1, 3) == local_shape(PARTIAL, (4, 7), 1, 3) == (4, 7)
