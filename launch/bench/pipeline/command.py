"""`psgd bench pipeline`: a step of a model in stages on several ranks, beside the same step on one rank."""

import json
from collections.abc import Iterable
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.bench import markdown
from psgd.launch.bench.sizes import format_seconds
from psgd.launch.whole_numbers import Whole
from psgd.parallel.schedules.catalog import SCHEDULES

COLUMNS = ("schedule", "one rank", "pipeline", "ratio", "bubble", "expected")
KNOWN = tuple(SCHEDULES)


@click.command()
@click.option("--schedules", show_default=",".join(KNOWN), help="Comma-separated: a row each.")
@click.option(
    "--layers",
    type=Whole(2),
    default=8,
    show_default=True,
    help="Equal layers, in equal stages; small ones around them.",
)
@click.option("--width", type=Whole(1), default=1024, show_default=True, help="Inputs and outputs of each.")
@click.option("--batch", type=Whole(1), default=2048, show_default=True, help="Samples of a step.")
@click.option("--microbatches", type=Whole(1), default=8, show_default=True, help="Parts of a batch.")
@click.option("--ranks", type=Whole(2), default=2, show_default=True, help="Number of ranks.")
@click.option("--repeats", type=Whole(1), default=10, show_default=True, help="Timed steps of each contender.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where it runs.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def pipeline(
    *,
    schedules: str | None,
    layers: int,
    width: int,
    batch: int,
    microbatches: int,
    ranks: int,
    repeats: int,
    device: str,
    form: str | None,
) -> int:
    """Time the gradient of an MLP, and its outputs alone, on one rank and in equal stages on all.

    Each rank has one core and one thread; one rank alone has the machine to itself, since the others sleep, and takes
    the batch whole. Outputs alone are those of four batches. Contenders take turns. Verified first: the pipeline's
    loss is the whole model's, up to rounding. The ratio is one rank's time over that of all. The bubble is the share
    of the ranks' time that is not compute; the expected one is that of a schedule whose backward passes take twice as
    long as forward ones. pipedream and pipedream-2bw take steps, too, and are timed while the pipeline is full; a line
    below the table says what each rank did then, in the run with the median bubble, and which bubble was least. With
    --device cuda each rank has a GPU, passes are CUDA graphs on one GPU as on all (unless PSGD_CUDA_GRAPHS=0), and
    neither the bubble nor that line is there.
    """
    from psgd.launch.bench import job

    names = KNOWN if schedules is None else schedules.split(",")
    if unknown := [name for name in names if name not in KNOWN]:
        raise UsageError(f"--schedules: expected some of {', '.join(KNOWN)}, comma-separated, got {unknown[0]!r}")
    needed = ranks * max(2 if SCHEDULES[name].chunks else 1 for name in names)
    if layers % needed:
        raise UsageError(f"--layers: expected a multiple of {needed}, so that stages are equal, got {layers}")
    if microbatches > batch:
        raise UsageError(f"--microbatches: expected at most the {batch} samples of a batch, got {microbatches}")

    def rank(first: bool) -> None:
        from mpi4py import MPI

        from psgd.launch.bench.pipeline.ranks import Sizes, measure
        from psgd.runtime.fail_together import guard

        comm = MPI.COMM_WORLD
        job.check("pipeline", ranks, comm.size, "ranks")
        with guard(comm):
            rows = measure(comm, names, Sizes(layers, width, batch, microbatches), repeats, device)
            if first:
                _show(rows, form)
            else:
                for _ in rows:
                    pass

    return job.run("pipeline", ranks, rank, what="ranks", bind=device == "cpu")


def _show(rows: Iterable[dict[str, Any]], form: str | None) -> None:
    """Prints each row as it comes."""
    if form != "json":
        click.echo(markdown.head(COLUMNS) if form else _line(COLUMNS))
    notes: list[str] = []
    for row in rows:
        one, all_of_them = row["one_seconds"], row["pipeline_seconds"]
        bubble = "-" if row["bubble"] is None else f"{100 * row['bubble']:.1f} %"
        shares = bubble, f"{100 * row['expected_bubble']:.1f} %"
        cells = (
            row["schedule"],
            format_seconds(one),
            format_seconds(all_of_them),
            f"{one / all_of_them:.2f}",
            *shares,
        )
        click.echo(json.dumps(row) if form == "json" else markdown.line(cells) if form else _line(cells))
        if not form and "shares" in row:
            notes.append(_shares(row))
    for note in notes:
        click.echo(note)
    if not form:
        click.echo("median step; results verified")


def _shares(row: dict[str, Any]) -> str:
    """What the ranks of a pipeline that is never empty did."""
    ranks = (
        f"rank {rank} {100 * each['passes']:.1f} % passes, {100 * each['steps']:.1f} % steps"
        for rank, each in enumerate(row["shares"])
    )
    return f"{row['schedule']}: {'; '.join(ranks)}; least bubble {100 * row['least_bubble']:.1f} %"


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (13, 9, 9, 6, 8, 8), strict=True))
