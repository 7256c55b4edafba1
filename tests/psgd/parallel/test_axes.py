import pytest

from psgd.kernels.errors import UsageError
from psgd.parallel.axes import AXES, parse, written


def test_the_text_of_a_mesh():
    assert parse("pipe=2,tensor=3, data = 4") == {"pipe": 2, "tensor": 3, "data": 4}
    assert parse("tensor=1") == {"tensor": 1}
    assert written({"pipe": 2, "tensor": 1, "data": 4}) == "pipe=2,data=4"
    assert written({"pipe": 1}) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"--mesh : expected AXIS=RANKS with tensor, pipe or data, got ''"),
        ("pipe", "got 'pipe'"),
        ("pipe=2,rows=2", "expected AXIS=RANKS with tensor, pipe or data, got 'rows=2'"),
        ("pipe=2,pipe=2", "pipe is given twice"),
        ("pipe=0", "pipe: expected a whole number, at least 1, got '0'"),
        ("pipe=-2", "got '-2'"),
        ("pipe=2.5", "got '2.5'"),
        ("data=99999999999", "got '99999999999'"),
    ],
)
def test_what_is_no_mesh(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_ranks_along_some_axes_hold_one_copy_together():
    assert [name for name, axis in AXES.items() if axis.of_a_replica] == ["tensor", "pipe"]
