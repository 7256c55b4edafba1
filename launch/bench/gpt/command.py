"""`psgd bench gpt`: a transformer's losses and speed beside PyTorch's own modules, on the same tokens and cores."""

import json
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.bench import markdown
from psgd.launch.whole_numbers import Whole

COLUMNS = (
    "layers x width",
    "context",
    "batch",
    "losses differ by",
    "PyTorch",
    "psgd",
    "ratio",
    "psgd, all ranks",
    "ratio",
)
NEAR = 1e-4


@click.command()
@click.option("--layers", type=Whole(1), default=4, show_default=True, help="Layers of the model.")
@click.option("--width", type=Whole(1), default=128, show_default=True, help="Features of a token.")
@click.option("--heads", type=Whole(1), default=4, show_default=True, help="Heads of attention.")
@click.option("--context", type=Whole(1), default=128, show_default=True, help="Tokens of a sample.")
@click.option("--dataset", default="genesis", show_default=True, help="The text: genesis, or FILE.txt.")
@click.option("--batch-size", type=Whole(1), default=8, show_default=True, help="Samples of each rank and step.")
@click.option("--steps", type=Whole(1), default=200, show_default=True, help="Steps whose losses are compared.")
@click.option("--repeats", type=Whole(1), default=50, show_default=True, help="Timed steps of each contender.")
@click.option("--ranks", type=Whole(1), default=2, show_default=True, help="Number of ranks.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the row of a Markdown table.")
def gpt(*, ranks: int, form: str | None, **chosen: Any) -> int:
    """Train a causal transformer on text, and the same one of PyTorch's modules beside it.

    First both take as many steps of Adam on the same tokens from the same weights, psgd by all-reduce on all ranks,
    PyTorch on one; their losses must not differ by more than 1e-4. Then steps are timed in turn: on every rank by
    itself PyTorch and psgd, and psgd by all-reduce on all. Each rank has one thread and one core. Speeds are samples a
    second of one core, and ratios psgd's speed over PyTorch's.
    """
    from psgd.launch.bench import job
    from psgd.launch.bench.peers.processes import has_torch

    if not has_torch():
        raise UsageError("bench gpt: expected PyTorch, which is not installed: pip install 'psgd[torch]'")

    def rank(first: bool) -> None:
        from mpi4py import MPI

        from psgd.launch.bench.gpt import ranks as bodies
        from psgd.runtime.fail_together import guard

        comm = MPI.COMM_WORLD
        job.check("gpt", ranks, comm.size, "ranks")
        with guard(comm):
            row = bodies.measure(comm, bodies.Trial(**chosen), NEAR)
            if first:
                _show(row, form)

    return job.run("gpt", ranks, rank, what="ranks")


def _show(row: dict[str, Any], form: str | None) -> None:
    if form == "json":
        click.echo(json.dumps(row))
        return
    cells = _cells(row)
    if form == "markdown":
        click.echo(markdown.head(COLUMNS))
        click.echo(markdown.line(cells))
        return
    for name, cell in zip(COLUMNS, cells, strict=True):
        click.echo(f"{name:<18} {cell}")
    click.echo("samples a second of one core; median step of the slowest rank")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    theirs, own, together = (row[f"{name}_samples_per_second"] for name in ("torch", "psgd", "psgd_all"))
    return (
        *(f"{row['layers']} x {row['width']}", str(row["context"]), str(row["batch_size"])),
        f"{row['difference']:.1e} in {row['steps']} steps",
        *(f"{theirs:,.1f}", f"{own:,.1f}", f"{own / theirs:.2f}", f"{together:,.1f}", f"{together / theirs:.2f}"),
    )
