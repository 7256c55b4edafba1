"""A picture of strategies beside their PyTorch peers: speed, accuracy, and time to the target accuracy."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from psgd.kernels.notice import counted
from psgd.launch.bench.peers.torch_options import TorchOptions
from psgd.launch.bench.train.settings import PEERS
from psgd.launch.output import picture

OURS, THEIRS = "#0072b2", "#d55e00"  # the colour-blind tell them apart
BAND = 0.005


def draw(rows: Sequence[dict[str, Any]], options: TorchOptions, target: float, path: Path) -> None:
    """Writes the picture: a line for each strategy and peer, a panel for each quantity.

    Args:
        rows: of `train_runs.summarize`, at least one.
        options: what ran.
        target: accuracy whose time has a panel; 0 is none.
        path: the file; its suffix gives the format.

    Raises:
        UsageError: it cannot be written.
    """
    names = [row["name"] for row in rows]
    colours = [THEIRS if name in PEERS else OURS for name in names]
    panels = 3 if target else 2
    figure = picture.figure(3.7 * panels + 1, 0.32 * len(rows) + 1.6)
    axes = figure.subplots(1, panels, sharey=True)
    places = range(len(rows))
    speeds = [row["samples_per_second"] / 1000 for row in rows]
    _bars(axes[0], speeds, [f"{speed:,.0f}" for speed in speeds], colours)
    axes[0].set(xlabel="thousand samples/s", yticks=places, yticklabels=names)
    axes[0].invert_yaxis()
    for place, row, colour in zip(places, rows, colours, strict=True):
        width = row["test_accuracy_interval"] or 0.0
        axes[1].errorbar(100 * row["test_accuracy"], place, xerr=100 * width, fmt="o", color=colour, capsize=3)
        if row["name"] == "single":
            low, high = 100 * (row["test_accuracy"] - BAND), 100 * (row["test_accuracy"] + BAND)
            axes[1].axvspan(low, high, color=OURS, alpha=0.12, linewidth=0, label="single ± 0.5 points")
            axes[1].legend(fontsize="x-small", loc="best")
    axes[1].set(xlabel="test accuracy, %, with 95 % interval")
    if target:
        seconds = [row["seconds_to_accuracy"] for row in rows]
        labels = ["not reached" if value is None else f"{value:.1f}" for value in seconds]
        _bars(axes[2], [value or 0.0 for value in seconds], labels, colours)
        axes[2].set(xlabel=f"seconds to {100 * target:g} %")
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    slow = f", {options.inject}" if options.inject else ""
    figure.suptitle(
        f"{picture.label(options.dataset)}, {options.model}, {counted(options.workers, 'worker')}, "
        f"{counted(options.epochs, 'epoch')}"
        f"{slow}, {date.today().isoformat()}: psgd (blue), PyTorch (orange)",
        fontsize="medium",
    )
    picture.save(figure, "--plot", path)


def _bars(axis: Any, values: Sequence[float], labels: Sequence[str], colours: Sequence[str]) -> None:
    """Lying bars with their values beside them."""
    bars = axis.barh(range(len(values)), values, height=0.7, color=colours)
    axis.bar_label(bars, labels, padding=3, fontsize="small")
    axis.margins(x=0.15)
