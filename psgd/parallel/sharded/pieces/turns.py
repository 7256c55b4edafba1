"""In which order the passes of a schedule gather units, of several stages and microbatches.

A turn is one unit's, in one microbatch, forward or backward. A unit that still lies in its buffer from an earlier turn
of the same batch is not gathered again: parameters change between batches only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psgd.parallel.schedules.instruction import Instruction


@dataclass(frozen=True)
class Turns:
    """The gathers of a batch, in an order that is the same on all ranks.

    Attributes:
        order: for each turn its unit, and whether it is backward.
        gathers: for each turn the units to gather for it.
        ahead: for each turn those for the next one that may be gathered while it computes.
        after: for each turn those for the next one that have to wait for its end.
    """

    order: tuple[tuple[int, bool], ...]
    gathers: tuple[tuple[int, ...], ...]
    ahead: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


NONE = Turns((), (), (), ())
"""Where nothing is gathered."""


def order(program: Sequence[Instruction], chunks: Mapping[int, range]) -> list[tuple[int, bool]]:
    """The turns of a rank's program.

    Args:
        program: what the rank computes; the second half of a backward pass, "W", needs no parameters.
        chunks: for each chunk of the rank its units.
    """
    found: list[tuple[int, bool]] = []
    for each in program:
        units = chunks[each.chunk]
        if each.kind == "F":
            found += [(unit, False) for unit in units]
        elif each.kind in ("B", "X"):
            found += [(unit, True) for unit in reversed(units)]
    return found


def plan(turns: Sequence[tuple[int, bool]], slots: Sequence[int], shared: Sequence[Sequence[int]]) -> Turns:
    """What is gathered when.

    Args:
        turns: in their order.
        slots: each unit's buffer.
        shared: for each unit the others that its turns need; these have buffers of their own.
    """
    needs = [[unit, *shared[unit]] for unit, _ in turns]
    there: dict[int, int] = {}
    gathers: list[tuple[int, ...]] = []
    for wanted in needs:
        gathers.append(tuple(unit for unit in wanted if there.get(slots[unit]) != unit))
        there.update({slots[unit]: unit for unit in wanted})
    ahead, after = [], []
    for turn, following in enumerate([*gathers[1:], ()] if gathers else []):
        busy = {slots[unit] for unit in needs[turn]}
        ahead.append(tuple(unit for unit in following if slots[unit] not in busy))
        after.append(tuple(unit for unit in following if slots[unit] in busy))
    return Turns(tuple(turns), tuple(gathers), tuple(ahead), tuple(after))
