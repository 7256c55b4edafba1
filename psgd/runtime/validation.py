"""Checks of single arguments: one message that says what, expected, got."""

import operator

from psgd.kernels.errors import UsageError


def whole_number(name: str, value: object) -> int:
    """The value as an int of 0 or more; any integer type will do.

    Raises:
        UsageError: it is not one.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name}: expected a whole number, got {value!r}") from None
    if number < 0 or isinstance(value, bool):
        raise UsageError(f"{name}: expected a whole number of 0 or more, got {value!r}")
    return number
