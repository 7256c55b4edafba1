"""One option of a run: its type, range, default and help, stated once for the command, its files and the library."""

import dataclasses
import difflib
import math
import numbers
import operator
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psgd.kernels.errors import UsageError

LARGEST = 2**31 - 1
"""The largest whole number that most options take: no array of a run is longer, and nobody waits for more steps."""

_LONGEST = 200


@dataclass(frozen=True)
class Option:
    """What one option takes.

    Attributes:
        type: of its values.
        default: None where it depends on other options, or where the option is off.
        help: one line for the command's help.
        allowed: whether a value of that type is in range.
        expected: the same in words, for messages; empty is one of `names`.
        names: the choices, where it is one of a few.
        metavar: stands for the value in the help; None chooses by type.
        shown: the default in words for the help, where `default` itself is not that.
        hidden: of `psgd.connect` only, not of the command.
        most: the largest value of a number, where `expected` does not say it.
    """

    type: type
    default: Any
    help: str
    allowed: Callable[[Any], object]
    expected: str = ""
    names: Collection[str] = ()
    metavar: str | None = None
    shown: str | None = None
    hidden: bool = False
    most: int | None = None

    def check(self, where: str, value: object) -> Any:
        """The value in its type; numbers and paths may be of any type that converts without loss.

        Args:
            where: the option's name as the user wrote it, for the message.
            value: what the user gave.

        Raises:
            UsageError: another type, or out of range.
        """
        result = _converted(self.type, value)
        too_large = self.most is not None and result is not None and result > self.most
        if result is None or too_large or not self.allowed(result):
            expected = f"at most {self.most}" if too_large else self.expected or f"one of {', '.join(self.names)}"
            near = difflib.get_close_matches(value, self.names, n=1) if isinstance(value, str) else []
            near = ["cuda"] if value == "gpu" and "cuda" in self.names else near  # not cpu, which is spelt like it
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{where}: expected {expected}, got {_brief(value)}{hint}")
        return result

    def field(self) -> Any:
        """A dataclass field with this default, which carries the option."""
        return dataclasses.field(default=self.default, metadata={"option": self})

    def unless_given(self) -> "Option":
        """The same option as None where it was not given; its help still shows the default."""
        return dataclasses.replace(self, default=None, shown=self.default_text())

    def default_text(self) -> str:
        """The default as the help shows it; empty where there is none to show."""
        if self.shown is not None:
            return self.shown
        return "" if self.default is None else str(self.default).lower() if self.type is bool else str(self.default)


def one_of(names: Collection[str], default: str | None, text: str, shown: str | None = None) -> Option:
    """One of a few names; a catalog may gain more."""
    return Option(str, default, text, names.__contains__, names=names, shown=shown)


def whole(low: int, default: int | None, text: str, shown: str | None = None) -> Option:
    """A whole number, at least `low`, and at most `LARGEST`."""
    return Option(int, default, text, lambda n: n >= low, f"a whole number, at least {low}", shown=shown, most=LARGEST)


def above_zero(default: float | None, text: str, shown: str | None = None) -> Option:
    """A finite number above 0."""
    return Option(float, default, text, lambda x: 0 < x < math.inf, "a finite number above 0", shown=shown)


def from_zero(default: float | None, text: str) -> Option:
    """A finite number, at least 0."""
    return Option(float, default, text, lambda x: 0 <= x < math.inf, "a finite number, at least 0")


def below_one(default: float | None, text: str) -> Option:
    """A number from 0 to less than 1."""
    return Option(float, default, text, lambda x: 0 <= x < 1, "a number in [0, 1)")


def switch(default: bool, text: str, shown: str | None = None, hidden: bool = False) -> Option:
    """On or off."""
    return Option(bool, default, text, lambda value: True, "true or false", shown=shown, hidden=hidden)


def path(text: str, expected: str = "a file's path", metavar: str = "FILE") -> Option:
    """A path, none by default."""
    return Option(Path, None, text, lambda path: path.name != "", expected, metavar=metavar)


def _brief(value: object) -> str:
    """A value as a message shows it; whole numbers of thousands of digits are more than Python writes."""
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return f"one of more than {_LONGEST} digits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _converted(kind: type, value: object) -> Any:
    """The value as a `kind`, None where it is none."""
    if isinstance(value, bool) or kind is bool:
        return value if kind is type(value) else None
    if kind in (int, float):
        try:
            if kind is int:
                return operator.index(value)  # type: ignore[arg-type]
            return float(value) if isinstance(value, numbers.Real) else None
        except (TypeError, OverflowError):  # no number, or a whole one beyond all floats
            return None
    if kind is Path:
        return Path(value).expanduser() if isinstance(value, str | os.PathLike) and str(value) else None
    return value if isinstance(value, kind) else None


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


def either(names: Iterable[str]) -> str:
    """The names in words: `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
