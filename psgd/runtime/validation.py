"""Checks of single arguments: one message that says what, expected, got."""

import math
import numbers
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


def real_number(name: str, value: object, above: float | None = None, below: float = math.inf) -> float:
    """The value as a finite float of 0 or more (greater than `above`, if given), less than `below`.

    Raises:
        UsageError: it is not one.
    """
    low = f"more than {above:g}" if above is not None else "0 or more"
    high = f" and less than {below:g}" if below != math.inf else ""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        if (number > above if above is not None else number >= 0.0) and number < below:
            return number
    raise UsageError(f"{name}: expected a number {low}{high}, got {value!r}")
