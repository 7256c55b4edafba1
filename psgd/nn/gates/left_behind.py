"""What layers keep in their states for the next pass: noted, and put back where another pass came in between.

Layers keep views and sizes when Python runs a pass, not when a CUDA graph of it does.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

LeftBehind = list[tuple[Any, dict[str, Any]]]


def noted(states: Any) -> LeftBehind:
    """Returns each of the states, which are dataclasses, in lists and in each other, with its attributes."""
    return [(each, _values(each)) for each in _all(states)]


def put_back(left: LeftBehind) -> None:
    """States have these attributes again."""
    for state, values in left:
        for name, value in values.items():
            setattr(state, name, value)


def _all(value: Any) -> Iterator[Any]:
    """Frozen dataclasses are layers."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _all(each)
    elif is_dataclass(value) and not isinstance(value, type) and not _frozen(value):
        yield value
        for each in fields(value):
            yield from _all(getattr(value, each.name))


def _frozen(value: Any) -> bool:
    return bool(type(value).__dataclass_params__.frozen)


def _values(state: Any) -> dict[str, Any]:
    """A dataclass's attributes; of lists a copy."""
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    return {name: list(value) if isinstance(value, list) else value for name, value in values.items()}
