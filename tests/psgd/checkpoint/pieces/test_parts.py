"""Who counts for a part that several ranks have."""

import pytest

from psgd.checkpoint.pieces.parts import first_owners, placed
from psgd.kernels.errors import AgreedUsageError
from psgd.nn.layout import Layout

WHOLE = Layout([("a", (4, 3)), ("b", (5,))], tied={"c": "a"})


def test_parts_are_found_by_name_tie_and_shape():
    layout = Layout([("c", (4, 2)), ("b", (5,)), ("d", (1,))], parts={"c": ((4, 3), (0, 1))})
    assert placed(layout, WHOLE) == [(0, (0, 1), (4, 2)), (1, (0,), (5,)), (-1, (0,), (1,))]
    assert placed(Layout([("b", (6,))]), WHOLE) == [(-1, (0,), (6,))]


def test_the_first_rank_counts_for_what_several_have():
    left, right, bias = (0, (0, 0), (4, 2)), (0, (0, 2), (4, 1)), (1, (0,), (5,))
    assert first_owners([[left, bias], [bias, right, right]], WHOLE) == [[left, bias], [right]]


def test_gaps_and_overlaps_are_refused():
    left, wide, bias = (0, (0, 0), (4, 2)), (0, (0, 1), (4, 2)), (1, (0,), (5,))
    with pytest.raises(AgreedUsageError, match="two parts of a overlap"):
        first_owners([[left, bias], [wide]], WHOLE)
    with pytest.raises(AgreedUsageError, match="12 elements of a, the ranks have 8"):
        first_owners([[left, bias]], WHOLE)
    with pytest.raises(AgreedUsageError, match="rank 1 has a parameter"):
        first_owners([[left], [(-1, (0,), (1,))]], WHOLE)
