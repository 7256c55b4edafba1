"""Values as JSON can say them: what can be saved so that it comes back equal, and facts that are read from files.

Every reader of a fact says which type it needs. What a file has instead is a CheckpointError that names the fact.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psgd.kernels.errors import CheckpointError

JSON = Any
"""None, bool, int, float, str, or lists and dicts of them."""

MOST_NESTED = 100
"""Lists and dicts inside each other: Python's own limit depends on where it is called."""
MOST_DIGITS = 4000
"""Of a whole number: Python reads at most 4,300."""
MOST_COUNTED = 2**62
"""The largest count that is believed: it fits an int64, and so does one more step."""


def clean(value: Any) -> Any:
    """The same value for JSON: paths as text, floats that are not finite as None."""
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def unsaid(value: object, where: str, nested: int = 0) -> str | None:
    """What keeps a value from coming back from JSON equal and of the same types; None where nothing does."""
    kind = type(value)
    if nested > MOST_NESTED:
        return f"{where[:60]}...: lists and dicts are nested more than {MOST_NESTED} deep"
    if isinstance(value, str) and kind is str:
        # Two halves of a surrogate pair become one character; each alone comes back.
        return None if json.loads(json.dumps(value)) == value else f"{where}: JSON would change this string"
    if isinstance(value, int) and kind is int:
        return None if abs(value) < 10**MOST_DIGITS else f"{where}: more than {MOST_DIGITS} digits"
    if isinstance(value, list) and kind is list:
        found = (unsaid(item, f"{where}[{index}]", nested + 1) for index, item in enumerate(value))
    elif isinstance(value, dict) and kind is dict:
        found = (_unsaid_item(key, item, where, nested) for key, item in value.items())
    elif value is None or kind in (bool, float):
        return None
    else:
        hint = "; use a list" if isinstance(value, (tuple, set, frozenset)) else ""
        return f"{where}: {kind.__name__} would not be restored unchanged{hint}"
    return next(filter(None, found), None)


def _unsaid_item(key: object, item: object, where: str, nested: int) -> str | None:
    if type(key) is not str:
        return f"{where}: key {key!r} would be restored as a string; use a string"
    return unsaid(key, f"{where}: key {key!r}") or unsaid(item, f"{where}[{key!r}]", nested + 1)


def fact(facts: Mapping[str, JSON], name: str) -> JSON:
    """A fact that has to be there.

    Raises:
        CheckpointError: it is not.
    """
    if name not in facts:
        raise CheckpointError(f"this checkpoint has no {name}: it was saved with other options")
    return facts[name]


def whole(facts: Mapping[str, JSON], name: str) -> int:
    """A count. Raises CheckpointError, as all readers here: it is missing, or something else."""
    value = fact(facts, name)
    if not _counts(value):
        raise _wrong(name, "a whole number of 0 or more", value)
    return int(value)


def number(facts: Mapping[str, JSON], name: str) -> float:
    """A float, which may be NaN or infinite."""
    value = fact(facts, name)
    if type(value) not in (int, float):
        raise _wrong(name, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise _wrong(name, "a number", value) from None


def wholes(facts: Mapping[str, JSON], name: str, count: int | None = None, most: int = MOST_COUNTED) -> list[int]:
    """A list of counts, of that length where one is given, none of them above `most`."""
    value = fact(facts, name)
    good = isinstance(value, list) and all(_counts(item, most) for item in value)
    if not good or count not in (None, len(value)):
        raise _wrong(name, f"a list of {'' if count is None else f'{count} '}whole numbers of 0 or more", value)
    return list(value)


def numbers(facts: Mapping[str, JSON], name: str, count: int | None = None) -> list[float]:
    """A list of floats, of that length where one is given."""
    value = fact(facts, name)
    if not isinstance(value, list) or count not in (None, len(value)):
        raise _wrong(name, f"a list of {'' if count is None else f'{count} '}numbers", value)
    return [number({name: item}, name) for item in value]


def texts(facts: Mapping[str, JSON], name: str) -> list[str]:
    """A list of texts."""
    value = fact(facts, name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(name, "a list of texts", value)
    return list(value)


def pairs(facts: Mapping[str, JSON], name: str) -> dict[int, int]:
    """Counts by number, saved as a list of pairs."""
    value = fact(facts, name)
    if not isinstance(value, list):
        raise _wrong(name, "a list of pairs", value)
    found = {}
    for item in value:
        key, count = wholes({name: item}, name, 2)
        found[key] = count
    return found


def section(facts: Mapping[str, JSON], name: str) -> dict[str, JSON]:
    """Facts inside a fact."""
    value = fact(facts, name)
    if not isinstance(value, dict):
        raise _wrong(name, "an object", value)
    return value


def same_kind(facts: Mapping[str, JSON], name: str, now: object) -> JSON:
    """A fact that replaces `now`, which is a bool, a whole number or a float."""
    if isinstance(now, bool):
        value = fact(facts, name)
        if type(value) is not bool:
            raise _wrong(name, "true or false", value)
        return value
    return number(facts, name) if isinstance(now, float) else whole(facts, name)


def _counts(value: object, most: int = MOST_COUNTED) -> bool:
    return type(value) is int and 0 <= value <= most


def _wrong(name: str, expected: str, value: object) -> CheckpointError:
    shown = json.dumps(value, default=repr)
    return CheckpointError(f"{name}: expected {expected}, the checkpoint has {shown[:60]}{'...' * (len(shown) > 60)}")
