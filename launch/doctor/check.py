"""What one check of `psgd doctor` found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was looked at.
        value: what was found.
        state: `ok`; `warning`: it works, but not as it could; `wrong`: training will fail here.
        fix: what to do about it; empty for `ok`.
    """

    name: str
    value: str
    state: State = "ok"
    fix: str = ""


def lines(checks: Sequence[Check]) -> list[str]:
    """The report as text, a check a line; a fix follows on a line of its own."""
    width = max((len(check.name) for check in checks), default=0)
    found = []
    for check in checks:
        found.append(f"{check.state:<7}  {check.name:<{width}}  {check.value}")
        if check.fix:
            found.append(f"{'':<7}  {'':<{width}}  fix: {check.fix}")
    return found
