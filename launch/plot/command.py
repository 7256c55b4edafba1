"""`psgd plot`: loss, accuracy, staleness and waiting of runs, from their logs."""

from pathlib import Path

import click

from psgd.kernels.errors import UsageError
from psgd.launch.plot.log import Run, read

FORMATS = (".png", ".pdf", ".svg")
Window = tuple[float, float]


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("-o", "--output", default="psgd.png", show_default=True, metavar="FILE", help=".png, .pdf or .svg.")
@click.option(
    "--timeline/--no-timeline",
    default=None,
    help="Show who waited for whom, in a panel per log.  [default: if there is one log, and it has waits]",
)
@click.option("--window", metavar="FROM:TO", help="Which seconds the timeline shows.  [default: all]")
def plot(logs: tuple[str, ...], output: str, timeline: bool | None, window: str | None) -> None:
    """Plot loss, accuracy, staleness and waiting from the logs of psgd train."""
    target = Path(output)
    if target.suffix.lower() not in FORMATS:
        raise UsageError(f"-o {output}: expected a name that ends in {', '.join(FORMATS)}")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"-o {output}: its folder does not exist")
    shown = None if window is None else _window(window)
    runs = [read(Path(log)) for log in logs]
    if timeline is None:
        timeline = shown is not None or (len(runs) == 1 and bool(runs[0].waits))
    try:
        import matplotlib
    except ImportError:
        raise UsageError("plot needs matplotlib; pip install matplotlib") from None
    matplotlib.use("agg")
    try:
        draw(runs, target, runs if timeline else [], shown)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written: {error.strerror or error}") from None
    click.echo(f"wrote {target}")


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
    from matplotlib.figure import Figure

    from psgd.launch.plot.curves import curves, staleness
    from psgd.launch.plot.timeline import timeline

    rows = 2 if any(run.tests for run in runs) else 1
    stale = any(run.staleness for run in runs)
    columns = 3 if stale else 2
    heights = [3.0] * rows + [0.9 + min(5.0, 0.3 * run.workers) for run in timelines or ()]
    figure = Figure(figsize=(4.2 * columns, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    axes = [[figure.add_subplot(grid[row, column]) for column in range(2)] for row in range(rows)]
    curves(axes, runs)
    if stale:
        staleness(figure.add_subplot(grid[:rows, 2]), runs)
    for row, run in enumerate(timelines or (), rows):
        timeline(figure.add_subplot(grid[row, :]), run, window)
    figure.savefig(target, dpi=150)
