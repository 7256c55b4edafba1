"""The parts of a run that grows, from a text."""

import pytest

from psgd.kernels.errors import UsageError
from psgd.runtime.ulfm.options import GROW, last_epoch, part, phases


def test_parts_are_read():
    assert phases("0.25:2, 1:4") == [(0.25, 2), (1.0, 4)]
    assert phases(None) == []


@pytest.mark.parametrize(
    ("workers", "epochs", "last"), [(2, 8, 2), (1, 8, 2), (2, 10, 3), (2, 1, 0), (3, 8, 4), (4, 8, 0), (5, 8, 0)]
)
def test_a_part_ends_with_an_epoch(workers, epochs, last):
    assert last_epoch("0.25:2,0.5:3,1:4", workers, epochs) == last
    assert last_epoch(None, workers, epochs) == 0
    assert part("0.25:2,0.5:3,1:4", workers).workers == min(4, max(2, workers))


WRONG = ["1:4", "0.5:2", "0.5:2,0.9:3", "0.5:2,1:2", "0.5:3,0.2:4,1:5", "0:1,1:2", "x", "nan:1,1:2", "0.5:0,1:2"]


@pytest.mark.parametrize("text", WRONG)
def test_wrong_ones_are_refused(text):
    assert phases(text) == []
    with pytest.raises(UsageError, match="--grow: expected FRACTION:WORKERS"):
        GROW.check("--grow", text)
