"""The time grid of a pipeline, from a rehearsal or a real run: as text, and how much of it is bubble."""

from collections.abc import Sequence

from psgd.parallel.schedules.rehearsal import Cell, rehearse
from psgd.parallel.schedules.schedule import Schedule


def span(cells: Sequence[Cell]) -> float:
    """Returns the time from the first start to the last stop; 0 without cells."""
    return max((cell.stop for cell in cells), default=0) - min((cell.start for cell in cells), default=0)


def bubble(cells: Sequence[Cell], ranks: int) -> float:
    """Returns the share of all ranks' time in which they compute nothing, from the first start to the last stop."""
    total = ranks * span(cells)
    return 1 - sum(cell.stop - cell.start for cell in cells) / total if total else 0.0


def expected(schedule: Schedule) -> float:
    """Returns the bubble of a schedule whose passes all take the same time, and its messages none."""
    return bubble(rehearse(schedule), schedule.ranks)


def steady(cells: Sequence[Cell], ranks: int) -> list[Cell]:
    """Returns the cells without the pipeline's fill and drain.

    It is full from when every rank has begun its first backward pass (without any: its first pass), and until one of
    them has ended its last forward pass. Cells that cross these edges are cut at them.
    """
    backward = any(cell.instruction.kind in ("B", "X") for cell in cells)
    begins = [
        [c.start for c in cells if c.rank == rank and (c.instruction.kind != "F") == backward] for rank in range(ranks)
    ]
    ends = [[c.stop for c in cells if c.rank == rank and c.instruction.kind == "F"] for rank in range(ranks)]
    if not all(begins) or not all(ends):
        return []
    start, stop = max(map(min, begins)), min(map(max, ends))
    cut = [Cell(c.rank, c.instruction, max(c.start, start), min(c.stop, stop)) for c in cells]
    return [cell for cell in cut if cell.stop > cell.start]


def text(cells: Sequence[Cell], ranks: int, unit: float = 1) -> str:
    """Draws the grid, a row for each rank and a column for each unit of time.

    Args:
        cells: each as long as a whole number of units, or nearly.
        ranks: how many rows.
        unit: of time, of one column.

    Returns:
        Lines of equal columns, as `F0 F1 .  B1`; a longer instruction is repeated in each column of its own.
    """
    first = min((cell.start for cell in cells), default=0)
    columns = round(span(cells) / unit)
    rows = [["."] * columns for _ in range(ranks)]
    for cell in cells:
        for column in range(round((cell.start - first) / unit), round((cell.stop - first) / unit)):
            rows[cell.rank][column] = str(cell.instruction)
    width = max((len(each) for row in rows for each in row), default=1)
    return "\n".join(" ".join(each.ljust(width) for each in row).rstrip() for row in rows)
