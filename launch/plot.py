"""`psgd plot`: loss, accuracy and staleness of runs, from their logs."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from psgd.kernels.errors import DataError, UsageError

FORMATS = (".png", ".pdf", ".svg")


@dataclass
class Run:
    """What a log tells.

    Attributes:
        name: of the log's file.
        progress: (seconds, samples, loss) of each progress line.
        tests: (seconds, samples, accuracy) of each evaluation.
        staleness: pushes by staleness, from the last line; empty where the run did not end.
    """

    name: str
    progress: list[tuple[float, float, float]] = field(default_factory=list)
    tests: list[tuple[float, float, float]] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("-o", "--output", default="psgd.png", show_default=True, metavar="FILE", help=".png, .pdf or .svg.")
def plot(logs: tuple[str, ...], output: str) -> None:
    """Draw loss and accuracy against time and samples, and staleness, from the logs of train."""
    target = Path(output)
    if target.suffix.lower() not in FORMATS:
        raise UsageError(f"-o {output}: expected a name that ends in {', '.join(FORMATS)}")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"-o {output}: its folder does not exist")
    runs = [read(Path(log)) for log in logs]
    try:
        import matplotlib
    except ImportError:
        raise UsageError("plot needs matplotlib; pip install matplotlib") from None
    matplotlib.use("agg")
    try:
        draw(runs, target)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written: {error.strerror or error}") from None
    click.echo(f"wrote {target}")


def read(path: Path) -> Run:
    """Reads a JSON lines log. A last line that is cut off is left out: the run may be going on.

    Raises:
        DataError: not readable, another line is not an object of a log, or there is nothing to draw.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise DataError(f"log {path}: cannot be read: {reason}") from None
    run = Run(path.stem)
    for number, line in enumerate(lines, 1):
        try:
            _add(run, json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines):
                break
            raise DataError(
                f"log {path}, line {number}: expected a line of psgd train --log, got {line[:60]!r} ({error})"
            ) from None
    if not run.progress and not run.tests:
        raise DataError(f"log {path}: no progress in it to draw; expected a file of psgd train --log")
    return run


def _add(run: Run, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "progress":
        run.progress.append((float(event["time"]), float(event["samples"]), _number(event["loss"])))
    elif kind == "eval":
        run.tests.append((float(event["time"]), float(event["samples"]), _number(event["accuracy"])))
    elif kind == "end":
        histogram = (event.get("staleness") or {}).get("histogram") or {}
        pairs = histogram.items() if isinstance(histogram, dict) else enumerate(histogram)
        run.staleness = {int(key): int(count) for key, count in pairs}


def _number(value: object) -> float:
    """A diverged run's loss is null in its log: a gap in the picture."""
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]


def draw(runs: list[Run], target: Path) -> None:
    """Writes the picture: loss over time and samples, accuracy below where there is any, staleness last.

    Args:
        runs: one colour each.
        target: the file; its suffix gives the format.
    """
    from matplotlib.figure import Figure

    rows = 2 if any(run.tests for run in runs) else 1
    stale = any(run.staleness for run in runs)
    columns = 3 if stale else 2
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, quantity in enumerate(("training loss", "test accuracy")[:rows]):
        for column, unit in enumerate(("time (s)", "samples")):
            axis = axes[row][column]
            for index, run in enumerate(runs):
                points = run.tests if row else run.progress
                axis.plot(
                    [point[column] for point in points],
                    [point[2] for point in points],
                    marker="o" if row else None,
                    markersize=3,
                    color=f"C{index}",
                    label=run.name,
                )
            losses = [point[2] for run in runs for point in run.progress]
            if row == 0 and losses and min(losses) > 0 and all(map(math.isfinite, losses)):
                axis.set_yscale("log")
            axis.set(xlabel=unit, ylabel=quantity)
            axis.locator_params(axis="x", nbins=6)
            axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize="small")
    if stale:
        _staleness(axes[0][2], runs)
        for axis in axes[1:, 2]:
            axis.set_axis_off()
    figure.savefig(target, dpi=150)


def _staleness(axis: Any, runs: list[Run]) -> None:
    width = 0.8 / len(runs)
    for index, run in enumerate(runs):
        total = sum(run.staleness.values()) or 1
        places = [key + (index - (len(runs) - 1) / 2) * width for key in run.staleness]
        axis.bar(places, [count / total for count in run.staleness.values()], width, color=f"C{index}")
    axis.set(xlabel="staleness (steps)", ylabel="share of pushes")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3, axis="y")
