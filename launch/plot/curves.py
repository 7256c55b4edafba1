"""Loss, accuracy and staleness of runs as curves and bars, one colour a run."""

import math
from typing import Any

from psgd.launch.output.picture import label
from psgd.launch.plot.log import Run

COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000")
"""Colours that the colour-blind can distinguish too (Okabe and Ito)."""

_LOG_FROM = 10.0


def curves(axes: Any, runs: list[Run]) -> None:
    """Draws the training loss in the first row of axes, the test accuracy in the second if there is one.

    Args:
        axes: 1 or 2 rows, of which the first two columns are drawn: against time, and against samples.
        runs: what to draw.
    """
    for row, quantity in enumerate(("training loss", "test accuracy")[: len(axes)]):
        for column, unit in enumerate(("time (s)", "samples")):
            axis = axes[row][column]
            for index, run in enumerate(runs):
                points = run.tests if row else run.progress
                axis.plot(
                    [point[column] for point in points],
                    [point[2] for point in points],
                    marker="o" if row else None,
                    markersize=3,
                    color=color(index),
                    linewidth=1.3
                    + min(1.8, 0.6 * (len(runs) - 1 - index)),  # the first ones show beside others that lie on them
                    label=label(run.name),
                )
            if row == 0 and _spans_decades(runs):
                _logarithmic(axis)
            axis.set(xlabel=unit, ylabel=quantity)
            axis.set_xlim(0, 1.03 * max(point[column] for run in runs for point in run.progress + run.tests) or None)
            axis.locator_params(axis="x", nbins=5)
            if unit == "samples":
                axis.xaxis.set_major_formatter(_engineering())
            axis.grid(alpha=0.3)


def staleness(axis: Any, runs: list[Run]) -> None:
    """Draws which share of the pushes had which staleness."""
    width = 0.8 / len(runs)
    for index, run in enumerate(runs):
        total = sum(run.staleness.values()) or 1
        places = [key + (index - (len(runs) - 1) / 2) * width for key in run.staleness]
        axis.bar(
            places,
            [count / total for count in run.staleness.values()],
            width,
            color=color(index),
            edgecolor=color(index),
        )
    axis.set(xlabel="staleness (steps)", ylabel="share of pushes")
    axis.xaxis.get_major_locator().set_params(integer=True)
    most = max(key for run in runs for key in run.staleness)
    axis.set_xlim(-0.6, max(most, 3) + 0.6)
    axis.set_axisbelow(True)
    axis.grid(alpha=0.3, axis="y")


def color(index: int) -> str:
    """The colour of the run or worker with this index."""
    return COLORS[index % len(COLORS)]


def _spans_decades(runs: list[Run]) -> bool:
    """Whether the losses are better seen on a logarithmic scale."""
    losses = [loss for run in runs for *_, loss in run.progress if math.isfinite(loss)]
    return bool(losses) and min(losses) > 0 and max(losses) > _LOG_FROM * min(losses)


def _logarithmic(axis: Any) -> None:
    """Ticks at 1, 2, 5, 10, ... written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def _engineering() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")
