"""A run as a timeline: a row for each worker, grey where it computes, coloured by whom it waits for where it waits.

The time is cut into `PARTS`. Where a part holds several waits, the row is filled to the height of their share of it: so
a second of a run shows its single steps, and an hour shows how much was waited.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.launch.output.picture import label
from psgd.launch.plot.curves import COLORS, color
from psgd.launch.plot.log import Run

PARTS = 1000
_HEIGHT = 0.8
_COMPUTING, _OTHERS = "#dddddd", "#888888"


def timeline(axis: Any, run: Run, window: tuple[float, float] | None = None) -> None:
    """Draws one run.

    Args:
        axis: where.
        run: whose waits; one without any is all grey.
        window: from and to, in seconds; None: the whole run, as far as waits were kept.
    """
    from matplotlib.patches import Patch

    start, stop = window or (0.0, run.seconds if run.stopped is None else run.stopped)
    edges = np.linspace(start, stop, PARTS + 1)
    waited = _seconds(run, start, stop)
    chosen = sorted(waited, key=lambda other: -waited[other])[: len(COLORS) - 1]
    for worker in range(run.workers):
        end = run.ends[worker] if worker < len(run.ends) else stop
        axis.barh(worker, max(0.0, min(end, stop) - start), _HEIGHT, left=start, color=_COMPUTING)
        base = np.full(PARTS, worker + _HEIGHT / 2)
        mine = [wait for wait in run.waits if wait[0] == worker]
        for other in [*chosen, None]:
            spans = [(a, b) for _, whom, a, b in mine if (whom == other if other is not None else whom not in chosen)]
            if not spans:
                continue
            top = base - _HEIGHT * shares(spans, edges)
            axis.stairs(top, edges, baseline=base, fill=True, color=_OTHERS if other is None else color(other))
            base = top
    shown = [Patch(color=_COMPUTING, label="computing, exchanging")]
    shown += [Patch(color=color(other), label=f"waiting for worker {other}") for other in sorted(chosen)]
    if len(waited) > len(chosen):
        shown.append(Patch(color=_OTHERS, label="waiting for another"))
    axis.legend(handles=shown, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    more = "" if run.stopped is None else f" (waits were kept to {run.stopped:.3g} s)"
    axis.set_title(label(run.name) + more, fontsize="medium", loc="left")
    axis.set(xlabel="time (s)", ylabel="worker", xlim=(start, stop), ylim=(run.workers - 0.5, -0.5))
    axis.yaxis.get_major_locator().set_params(integer=True)


def shares(spans: list[tuple[float, float]], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Which share of each part of the time the spans cover.

    Args:
        spans: from and to, in any order; where they overlap, the later one begins when the earlier ends.
        edges: of the parts, ascending, one more than parts.
    """
    moments = np.maximum.accumulate(np.ravel(sorted(spans)))
    covered = np.repeat(np.cumsum(moments[1::2] - moments[::2]), 2)
    covered[::2] -= moments[1::2] - moments[::2]
    parts: NDArray[np.float64] = np.diff(np.interp(edges, moments, covered)) / np.diff(edges)
    return parts


def _seconds(run: Run, start: float, stop: float) -> dict[int, float]:
    """How long others waited for each worker within the window; those for whom nobody did are not there."""
    waited: dict[int, float] = {}
    for _, other, first, last in run.waits:
        if (seconds := min(last, stop) - max(first, start)) > 0:
            waited[other] = waited.get(other, 0.0) + seconds
    return waited
