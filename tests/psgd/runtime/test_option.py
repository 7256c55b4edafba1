"""What one option takes, says of itself, and refuses."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.runtime import option
from psgd.runtime.option import Option

NAMES = option.one_of(("ring", "native"), "ring", "An algorithm.")
WHOLE = option.whole(1, 3, "Steps.")
ABOVE, FROM, BELOW = option.above_zero(0.5, ""), option.from_zero(0.0, ""), option.below_one(0.9, "")
SWITCH, PATH = option.switch(True, ""), option.path("A file.")


@pytest.mark.parametrize(
    ("one", "value", "wanted"),
    [
        (NAMES, "native", "native"),
        (WHOLE, np.int32(7), 7),
        (ABOVE, 2, 2.0),
        (ABOVE, np.float32(0.25), 0.25),
        (FROM, 0, 0.0),
        (BELOW, 0, 0.0),
        (SWITCH, False, False),
        (PATH, "a/b", Path("a/b")),
        (PATH, Path("~/b"), Path("~/b").expanduser()),
    ],
)
def test_a_value_in_range_comes_back_in_its_type(one, value, wanted):
    got = one.check("--x", value)
    assert got == wanted and type(got) is type(wanted)


@pytest.mark.parametrize(
    ("one", "value", "message"),
    [
        (
            dataclasses.replace(NAMES, names=("cpu", "cuda"), allowed=("cpu", "cuda").__contains__),
            "gpu",
            r"mean cuda\?",
        ),
        (NAMES, "rink", r"--x: expected one of ring, native, got 'rink'; did you mean ring\?"),
        (NAMES, 3, "--x: expected one of ring, native, got 3$"),
        (WHOLE, 0, "expected a whole number, at least 1, got 0"),
        (WHOLE, 1.0, "expected a whole number, at least 1, got 1.0"),
        (WHOLE, True, "expected a whole number"),
        (ABOVE, 0, "expected a finite number above 0, got 0"),
        (ABOVE, float("inf"), "expected a finite number above 0"),
        (ABOVE, float("nan"), "expected a finite number above 0"),
        (ABOVE, "1", "expected a finite number above 0, got '1'"),
        (FROM, -1e-9, "expected a finite number, at least 0"),
        (BELOW, 1, r"expected a number in \[0, 1\), got 1"),
        (SWITCH, 1, "expected true or false, got 1"),
        (PATH, "", "expected a file's path, got ''"),
        (PATH, 3, "expected a file's path, got 3"),
    ],
)
def test_others_are_refused_by_name(one, value, message):
    with pytest.raises(UsageError, match=message):
        one.check("--x", value)


def test_a_field_carries_its_option_and_default():
    made = dataclasses.make_dataclass("Made", [("steps", int, WHOLE.field())])
    (field,) = dataclasses.fields(made)
    assert made().steps == 3 and field.metadata["option"] is WHOLE


def test_defaults_as_help_shows_them():
    assert [each.default_text() for each in (NAMES, WHOLE, SWITCH, PATH)] == ["ring", "3", "true", ""]
    later = WHOLE.unless_given()
    assert later.default is None and later.default_text() == "3"
    assert Option(int, 4, "", bool, shown="as many as there are").default_text() == "as many as there are"


def test_names_in_words():
    assert [option.either(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a or b", "a, b or c"]


@pytest.mark.parametrize("value", [0, 3, np.int64(3), np.uint8(7)])
def test_whole_numbers(value):
    assert option.whole_number("n", value) == int(value)
    assert type(option.whole_number("n", value)) is int


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True, [1]])
def test_not_whole_numbers(value):
    with pytest.raises(UsageError, match="n: expected a whole number"):
        option.whole_number("n", value)
