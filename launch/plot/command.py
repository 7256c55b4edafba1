"""`psgd plot`: loss, accuracy, staleness and waiting of runs, from their logs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import counted
from psgd.launch.output import picture
from psgd.launch.plot.log import Run, read
from psgd.launch.whole_numbers import Whole

TALLEST_INCHES = 200.0  # matplotlib draws no more than 65,536 pixels
Window = tuple[float, float]


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option(
    "-o", "--output", default="psgd.png", show_default=True, metavar="FILE", help="Output: .png, .pdf or .svg."
)
@click.option(
    "--timeline/--no-timeline",
    default=None,
    help="Show who waited for whom, in a panel per log.  [default: if there is one log, and it has waits]",
)
@click.option("--window", metavar="FROM:TO", help="Which seconds the timeline shows.  [default: all]")
@click.option(
    "--batch",
    type=Whole(0),
    help="Which batch of a traced pipeline to show as a time grid.  [default: one in the middle]",
)
def plot(logs: tuple[str, ...], output: str, timeline: bool | None, window: str | None, batch: int | None) -> None:
    """Plot loss, accuracy, staleness and waiting from the logs of psgd train, or what ranks did from its traces."""
    target = Path(output)
    picture.check("-o", target)
    shown = None if window is None else _window(window)
    from psgd.metrics.trace import chrome

    paths = [Path(log) for log in logs]
    if traces := [path for path in paths if chrome.is_trace(path)]:
        if len(traces) < len(paths):
            raise UsageError(f"{traces[0]}: expected logs or traces, not both; draw this trace by itself")
        _draw_traces(traces, target, shown, batch)
        click.echo(f"wrote {target}")
        return
    if batch is not None:
        raise UsageError("--batch: expected a trace, got a log; psgd train --trace writes traces")
    runs = [read(path) for path in paths]
    names = [run.name for run in runs]
    for run, log in zip(runs, logs, strict=True):
        if names.count(run.name) > 1:
            run.name = log
    if timeline is None:
        timeline = shown is not None or (len(runs) == 1 and bool(runs[0].waits))
    draw(runs, target, runs if timeline else [], shown)
    click.echo(f"wrote {target}")


def _draw_traces(paths: list[Path], target: Path, window: Window | None, batch: int | None) -> None:
    """Writes a picture with a panel for each trace, and another one below where a pipeline was traced."""
    from psgd.launch.plot import ranks, time_grid
    from psgd.metrics.trace import chrome

    panels: list[tuple[int, Callable[[Any], None]]] = []
    for path in paths:
        found = ranks.Ranks(path)
        panels.append((len(found.labels), partial(ranks.draw, ranks=found, window=window)))
        if batch is not None or any(mine for _, mine in chrome.read_passes(path)):
            grid = time_grid.TimeGrid(path, batch)
            panels.append((len(grid.labels), partial(time_grid.draw, found=grid, name=path.name)))
    heights = [1.0 + 0.35 * rows for rows, _ in panels]
    figure = picture.figure(12.0, min(sum(heights), TALLEST_INCHES))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axis, (_, draw_panel) in zip(axes, panels, strict=True):
        draw_panel(axis[0])
    picture.save(figure, "-o", target)


def _window(text: str) -> Window:
    try:
        start, stop = map(float, text.split(":"))
    except ValueError:
        start = stop = 0.0
    if not 0 <= start < stop < float("inf"):
        raise UsageError(f"--window {text}: expected two times in seconds, the later one last, as in 1.5:2")
    return start, stop


def draw(runs: list[Run], target: Path, timelines: list[Run] | None = None, window: Window | None = None) -> None:
    """Writes the picture: loss over time and samples, accuracy below where there is any, staleness beside, waits last.

    Args:
        runs: one colour each.
        target: the file; its suffix gives the format.
        timelines: runs whose waits are drawn.
        window: seconds that are drawn of these.
    """
    from psgd.launch.plot.curves import curves, staleness
    from psgd.launch.plot.timeline import timeline

    rows = 2 if any(run.tests for run in runs) else 1
    stale = any(run.staleness for run in runs)
    columns = 3 if stale else 2
    heights = [3.0] * rows + [0.9 + min(5.0, 0.3 * run.workers) for run in timelines or ()]
    figure = picture.figure(4.2 * columns, min(sum(heights) + 0.6 + 0.25 * len(runs) / columns, TALLEST_INCHES))
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    axes = [[figure.add_subplot(grid[row, column]) for column in range(2)] for row in range(rows)]
    curves(axes, runs)
    if stale:
        staleness(figure.add_subplot(grid[:rows, 2]), runs)
    for row, run in enumerate(timelines or (), rows):
        timeline(figure.add_subplot(grid[row, :]), run, window)
    figure.suptitle(_title(runs), fontsize="medium")
    figure.legend(handles=axes[0][0].get_lines(), loc="outside lower center", ncols=columns, fontsize="small")
    picture.save(figure, "-o", target)


def _title(runs: list[Run]) -> str:
    """What the runs trained, where that is the same; a single run with its workers."""
    tasks = {run.task for run in runs}
    if len(tasks) > 1:
        tasks = {run.task.rpartition(", ")[0] for run in runs}  # the same with other strategies
    what = picture.label(tasks.pop()) if len(tasks) == 1 else ""
    if len(runs) == 1:
        return f"{what or 'psgd train'}, {counted(runs[0].workers, 'worker')}"
    return what or f"{len(runs)} runs of psgd train"
