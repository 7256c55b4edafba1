import json
import math
from pathlib import Path

import pytest

from psgd.runtime.jsonable import clean


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
