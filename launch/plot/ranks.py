"""A trace as a timeline: a row for each rank, coloured by what it did. F, B, X, W and U are a pipeline's passes.

The time is cut into parts. Where a part holds several spans, the row is filled by their shares of it, as for waits.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from psgd.kernels.errors import DataError
from psgd.launch.output.picture import label
from psgd.launch.plot.timeline import PARTS, shares
from psgd.metrics.trace import chrome
from psgd.metrics.trace.self_time import segments

COLORS = {
    "compute": "#dddddd",
    "gradient": "#009e73",
    "F": "#332288",
    "B": "#117733",
    "X": "#117733",
    "W": "#88ccee",
    "U": "#aa4499",
    "evaluate": "#f0e442",
    "push": "#0072b2",
    "wait": "#d55e00",
    "pull": "#56b4e9",
    "all-reduce": "#e69f00",
    "apply": "#cc79a7",
    "save": "#000000",
}
OTHERS = "#888888"
_HEIGHT = 0.8


class Ranks:
    """What the ranks of a traced run did.

    Args:
        path: of the trace.

    Attributes:
        name: of the file.
        labels: of the ranks, in order.
        spans: for each rank, by kind, from and to in seconds since the first event.
        seconds: the last moment.

    Raises:
        DataError: there is no event in it.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        found = chrome.read(path)
        first = min((span[0] for _, spans in found for span in spans), default=None)
        if first is None:
            raise DataError(f"trace {path}: no event in it to draw")
        self.labels = [name.partition(" on ")[0] for name, _ in found]
        self.spans: list[dict[str, list[tuple[float, float]]]] = []
        self.seconds = 0.0
        for _, spans in found:
            mine: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for start, stop, kind in segments(spans):
                mine[kind].append(((start - first) / 1e9, (stop - first) / 1e9))
                self.seconds = max(self.seconds, (stop - first) / 1e9)
            self.spans.append(mine)


def draw(axis: Any, ranks: Ranks, window: tuple[float, float] | None = None) -> None:
    """Draws one trace.

    Args:
        axis: where.
        ranks: whose.
        window: from and to, in seconds; None is all.
    """
    from matplotlib.patches import Patch

    start, stop = window or (0.0, ranks.seconds)
    edges = np.linspace(start, stop, PARTS + 1)
    kinds = {kind for spans in ranks.spans for kind in spans}
    shown = [kind for kind in COLORS if kind in kinds]
    for row, spans in enumerate(ranks.spans):
        base = np.full(PARTS, row + _HEIGHT / 2)
        for kind in [*shown, None]:
            mine = spans.get(kind, []) if kind else [each for k, s in spans.items() if k not in COLORS for each in s]
            if mine:
                top = base - _HEIGHT * shares(mine, edges)
                axis.stairs(top, edges, baseline=base, fill=True, color=COLORS[kind] if kind else OTHERS)
                base = top
    patches = [Patch(color=COLORS[kind], label=kind) for kind in shown]
    if kinds - set(COLORS):
        patches.append(Patch(color=OTHERS, label="other"))
    axis.legend(handles=patches, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axis.set_title(label(ranks.name), fontsize="medium", loc="left")
    axis.set_yticks(range(len(ranks.labels)), [label(each) for each in ranks.labels], fontsize="small")
    axis.set(xlabel="time (s)", xlim=(start, stop), ylim=(len(ranks.labels) - 0.5, -0.5))
