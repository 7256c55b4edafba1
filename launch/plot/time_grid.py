"""The time grid of a pipeline, from a trace: for one batch, what each rank did when, with the microbatches' numbers."""

from pathlib import Path
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.launch.output.picture import label
from psgd.metrics.trace import chrome
from psgd.metrics.trace.passes import Pass
from psgd.parallel.schedules import grid
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.rehearsal import Cell

COLORS = {"F": "#56b4e9", "B": "#e69f00", "X": "#e69f00", "W": "#009e73", "U": "#cc79a7"}
NAMES = {"F": "forward", "B": "backward", "X": "backward, dX", "W": "backward, dW", "U": "update"}
NARROWEST_LABEL = 0.015
"""Part of the width that a cell has at least if it is labelled."""
MOST_CELLS = 64
"""Of a row, where a run is one batch without end."""


class TimeGrid:
    """The passes of one batch.

    Args:
        path: of the trace.
        batch: which one, from 0, or negative from the last; None is the one in the middle.

    Attributes:
        batches: how many the trace has.
        batch: the one that this is, from 0.
        labels: of the ranks that are in a pipeline, in order.
        cells: the row is `Cell.rank`; times in seconds since the batch began.
        bubble: the share of these ranks' time, from the first start to the last end, in which they did no pass.

    Raises:
        DataError: the file is no trace.
        UsageError: there is no such batch in it.
    """

    def __init__(self, path: Path, batch: int | None = None) -> None:
        found = [(name, cut(mine)) for name, mine in chrome.read_passes(path) if mine]
        self.batches = min((len(mine) for _, mine in found), default=0)
        if self.batches == 0:
            raise UsageError(f"--batch: trace {path}: expected passes of a pipeline, got none")
        at = self.batches // 2 if batch is None else batch
        if not -self.batches <= at < self.batches:
            raise UsageError(f"--batch {at}: expected -{self.batches} to {self.batches - 1}, as many as {path} has")
        self.batch = at % self.batches
        self.labels = [name.partition(" on ")[0] for name, _ in found]
        # A ring may have lost the oldest: what all have is the newest.
        chosen = [mine[self.batch - self.batches][:MOST_CELLS] for _, mine in found]
        first = min(each.start for mine in chosen for each in mine)
        self.cells = [
            Cell(row, Instruction(each.kind, each.microbatch, each.chunk), each.start - first, each.stop - first)  # type: ignore[arg-type]
            for row, mine in enumerate(chosen)
            for each in mine
        ]
        self.bubble = grid.bubble(self.cells, len(found))


def cut(passes: list[Pass]) -> list[list[Pass]]:
    """Cuts what a rank did into batches: each begins with the forward pass of microbatch 0 through chunk 0.

    Passes before the first one are left out.
    """
    batches: list[list[Pass]] = []
    for each in passes:
        if (each.kind, each.microbatch, each.chunk) == ("F", 0, 0):
            batches.append([])
        if batches:
            batches[-1].append(each)
    return batches


def draw(axis: Any, found: TimeGrid, name: str) -> None:
    """Draws a grid: a row for each rank, a box for each pass.

    Args:
        axis: where.
        found: what.
        name: of the trace, for the title.
    """
    from matplotlib.patches import Patch

    scale = 1000.0
    for row in range(len(found.labels)):
        mine = [cell for cell in found.cells if cell.rank == row]
        axis.broken_barh(
            [(scale * cell.start, scale * (cell.stop - cell.start)) for cell in mine],
            (row - 0.4, 0.8),
            facecolors=[COLORS[cell.instruction.kind] for cell in mine],
            edgecolors="white",
            linewidth=0.5,
        )
        for cell in mine:
            if cell.stop - cell.start >= NARROWEST_LABEL * grid.span(found.cells):
                place = scale * (cell.start + cell.stop) / 2, row
                axis.text(*place, str(cell.instruction)[1:], ha="center", va="center", fontsize="x-small", clip_on=True)
    kinds = [kind for kind in COLORS if any(cell.instruction.kind == kind for cell in found.cells)]
    patches = [Patch(color=COLORS[kind], label=NAMES[kind]) for kind in kinds]
    axis.legend(handles=patches, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    title = f"{label(name)}, batch {found.batch}: bubble {100 * found.bubble:.1f} %"
    axis.set_title(title, fontsize="medium", loc="left")
    axis.set_yticks(range(len(found.labels)), [label(each) for each in found.labels], fontsize="small")
    axis.set(xlabel="time (ms)", ylim=(len(found.labels) - 0.5, -0.5))
