import json
import math
import re
from pathlib import Path

import pytest

from psgd.kernels.errors import CheckpointError
from psgd.runtime import jsonable
from psgd.runtime.jsonable import clean, unsaid


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Path("a/b"), "a/b"),
        (math.nan, None),
        (-math.inf, None),
        (0.1, 0.1),
        (3, 3),
        (True, True),
        ("x", "x"),
        (None, None),
        ({"a": math.inf, "b": {"c": Path("d")}}, {"a": None, "b": {"c": "d"}}),
    ],
)
def test_json_can_say_it(value, wanted):
    assert clean(value) == wanted and type(clean(value)) is type(wanted)
    json.dumps(clean(value), allow_nan=False)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


class Text(str):
    __slots__ = ()


KEPT = [
    *(None, True, 0, -(10**3999), 0.1, -0.0, math.nan, -math.inf, "ä\0\U0001f600", "\udce9"),
    *([1, [None, "x"]], {}, {"": {"a": [1.5]}}, nested(100)),
]


@pytest.mark.parametrize("value", KEPT, ids=range(len(KEPT)))
def test_what_comes_back(value):
    assert unsaid(value, "x") is None
    back = json.loads(json.dumps(value))
    assert repr(back) == repr(value) and type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ((1, 2), "x: tuple would not be restored unchanged; use a list"),
        ({1}, "x: set would not be restored unchanged; use a list"),
        ({"a": [0, (1,)]}, r"x\['a'\]\[1\]: tuple"),
        ({1: "a", "1": "b"}, "x: key 1 would be restored as a string"),
        ({None: 1}, "x: key None would"),
        (1j, "x: complex"),
        (b"x", "x: bytes"),
        (Path("a"), "x: PosixPath"),
        (Text("a"), "x: Text"),
        (10**5000, "x: more than 4000 digits"),
        ("\ud83d\ude00", "x: JSON would change this string"),
        ({"\ud83d\ude00": 1}, "x: key .*: JSON would change this string"),
        (nested(102), "x.*: lists and dicts are nested more than 100 deep"),
    ],
    ids=range(13),
)
def test_what_does_not_come_back_is_named(value, why):
    assert re.match(why, unsaid(value, "x"))


ODD = [None, True, -1, 1.5, "1", [], {}, [1], {"a": 1}, 2**63, 10**400, [-1, 2], [1, "2"], [[1, 2], [3]], math.nan]
READERS = {  # those of ODD that it takes
    jsonable.whole: [],
    jsonable.number: [-1, 1.5, 2**63, math.nan],
    jsonable.wholes: [[], [1]],
    jsonable.numbers: [[], [1], [-1, 2]],
    jsonable.pairs: [[]],
    jsonable.section: [{}, {"a": 1}],
}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_readers_take_their_type_alone(reader):
    taken = []
    for value in ODD:
        try:
            reader({"x": value}, "x")
        except CheckpointError as error:
            said = str(error)
            assert said.startswith("x: expected ") and "the checkpoint has" in said
        else:
            taken.append(value)
    assert repr(taken) == repr(READERS[reader])
    with pytest.raises(CheckpointError, match="this checkpoint has no x"):
        reader({}, "x")


def test_readers_give_what_is_there():
    facts = {"n": 7, "x": 2, "list": [1, 2], "pairs": [[0, 5], [3, 1]], "yes": False}
    assert jsonable.whole(facts, "n") == 7 and jsonable.wholes(facts, "list", 2) == [1, 2]
    assert type(jsonable.number(facts, "x")) is float and jsonable.numbers(facts, "list") == [1.0, 2.0]
    assert jsonable.pairs(facts, "pairs") == {0: 5, 3: 1} and jsonable.same_kind(facts, "yes", True) is False
    assert type(jsonable.same_kind(facts, "x", 0.5)) is float and jsonable.same_kind(facts, "n", 0) == 7
    for reader in (jsonable.wholes, jsonable.numbers):
        with pytest.raises(CheckpointError, match="a list of 3"):
            reader(facts, "list", 3)
    with pytest.raises(CheckpointError, match="true or false"):
        jsonable.same_kind(facts, "n", True)


def test_what_contains_itself_is_refused_in_a_line_of_some_length():
    mine = []
    mine.append(mine)
    assert "nested more than 100 deep" in unsaid(mine, "extra['a']") and len(unsaid(mine, "extra['a']")) < 200
