"""`psgd bench sharded`: steps of sharded data parallelism beside those of `allreduce`, in turn."""

import json
from typing import Any

import click

from psgd.launch.bench import markdown
from psgd.launch.bench.sizes import format_seconds
from psgd.launch.whole_numbers import Whole

COLUMNS = ("stage", "step", "ratio", "MB a step", "MB kept")


@click.command()
@click.option("--layers", type=Whole(1), default=8, show_default=True, help="Hidden layers of the model, an MLP.")
@click.option("--width", type=Whole(1), default=512, show_default=True, help="Inputs, units of a layer, outputs.")
@click.option("--batch", type=Whole(1), default=256, show_default=True, help="Samples of each rank and step.")
@click.option("--ranks", type=Whole(2), default=2, show_default=True, help="Number of ranks.")
@click.option("--repeats", type=Whole(1), default=20, show_default=True, help="Timed steps of each contender.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where it runs.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def sharded(*, ranks: int, form: str | None, **chosen: Any) -> int:
    """Time steps of Adam with clipping: `allreduce`, and its three stages of sharding.

    Contenders take turns, step by step. Verified: after all steps their parameters have the same bits, and each has
    moved exactly the bytes that its stage says. The ratio is a stage's time over that of allreduce.
    """
    from psgd.launch.bench import job

    def rank(first: bool) -> None:
        from mpi4py import MPI

        from psgd.launch.bench.sharded import ranks as bodies
        from psgd.runtime.fail_together import guard

        comm = MPI.COMM_WORLD
        job.check("sharded", ranks, comm.size, "ranks")
        with guard(comm):
            rows = bodies.measure(comm, **chosen)
            if first:
                _show(rows, form)

    return job.run("sharded", ranks, rank, what="ranks", bind=chosen["device"] == "cpu")


def _show(rows: list[dict[str, Any]], form: str | None) -> None:
    if form != "json":
        click.echo(markdown.head(COLUMNS) if form else _line(COLUMNS))
    for row in rows:
        ratio = row["seconds"] / rows[0]["seconds"]
        name = str(row["stage"] or "allreduce")
        moved, kept = row["bytes_moved"] / 1e6, row["bytes_kept"] / 1e6
        cells = (name, format_seconds(row["seconds"]), f"{ratio:.2f}", f"{moved:.3g}", f"{kept:.3g}")
        click.echo(json.dumps(row | {"ratio": ratio}) if form == "json" else (markdown.line if form else _line)(cells))
    if not form:
        click.echo("median step of the slowest rank; parameters and bytes verified")


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (9, 9, 6, 9, 9), strict=True))
