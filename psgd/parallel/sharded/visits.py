"""In which order a pass gathers units: forward from the first unit to the last, backward the same way back.

A visit is one unit's turn, forward or backward. It needs the unit itself, and units elsewhere that it shares weights
with. What one visit needs is gathered when it is the next, or where that would overwrite what the present one uses,
as soon as that has ended. So each unit is gathered twice in a training pass, whatever lies in the buffers already:
the traffic is 2 U (N - 1)/N for each unit of U elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Visits:
    """The gathers of a pass, in an order that is the same on all ranks.

    Attributes:
        forward: how many visits a pass has until backward begins; as many follow.
        gathers: for each visit the units to gather for it.
        ahead: for each visit those for the next one that may be gathered while it computes.
        after: for each visit those for the next one that have to wait for its end.
    """

    forward: int
    gathers: tuple[tuple[int, ...], ...]
    ahead: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def plan(slots: Sequence[int], shared: Sequence[Sequence[int]]) -> Visits:
    """The visits of units in order.

    Args:
        slots: each unit's buffer.
        shared: for each unit the others that its visits need; these have buffers of their own.
    """
    units = len(slots)
    needs = [[unit, *shared[unit]] for unit in range(units)]
    needs += needs[::-1]
    gathers: list[tuple[int, ...]] = []
    for start in (0, units):  # what several visits of one direction need is gathered for the first of them
        there: set[int] = set()
        for wanted in needs[start : start + units]:
            gathers.append(tuple(unit for unit in wanted if unit not in there))
            there.update(wanted)
    ahead, after = [], []
    for visit, following in enumerate([*gathers[1:], ()]):
        busy = {slots[unit] for unit in needs[visit]}
        ahead.append(tuple(unit for unit in following if slots[unit] not in busy))
        after.append(tuple(unit for unit in following if slots[unit] in busy))
    return Visits(units, tuple(gathers), tuple(ahead), tuple(after))
