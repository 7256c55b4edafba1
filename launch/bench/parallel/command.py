"""`psgd bench parallel`: a step of a model that is cut over ranks, beside the same step on one rank."""

import json
from collections.abc import Iterable
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.bench import markdown
from psgd.launch.bench.sizes import format_seconds, parse_counts
from psgd.launch.whole_numbers import Whole

COLUMNS = ("model", "one rank", "tensor", "ratio", "PyTorch", "ratio")


@click.command()
@click.option("--hidden", default="256,1024,4096", show_default=True, help="Hidden units, comma-separated: a row each.")
@click.option("--width", type=Whole(1), default=1024, show_default=True, help="Inputs, and outputs.")
@click.option("--batch", type=Whole(1), default=128, show_default=True, help="Samples of a step.")
@click.option("--ranks", type=Whole(2), default=2, show_default=True, help="Number of ranks.")
@click.option("--repeats", type=Whole(1), default=30, show_default=True, help="Timed steps of each contender.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where it runs.")
@click.option("--torch", is_flag=True, help="Time PyTorch's tensor parallelism too, over NCCL on GPUs, else Gloo.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def parallel(
    *, hidden: str, width: int, batch: int, ranks: int, repeats: int, device: str, torch: bool, form: str | None
) -> int:
    """Time the gradient of an MLP with one hidden layer, on one rank and with its layers cut over all.

    Each rank has one core and one thread; one rank alone has the machine to itself, since the others sleep. Contenders
    take turns. Verified first: loss and gradients of the cut model are those of the whole, up to rounding. The first
    ratio is one rank's time over that of all, the second PyTorch's over psgd's.
    """
    from psgd.launch.bench import job
    from psgd.launch.bench.peers.processes import has_torch

    units = parse_counts("--hidden", hidden)
    if torch and not has_torch():
        raise UsageError("bench parallel: --torch: PyTorch is not installed: pip install 'psgd[torch]'")

    def rank(first: bool) -> None:
        from mpi4py import MPI

        from psgd.launch.bench.parallel import cut_mlp
        from psgd.runtime.fail_together import guard

        comm = MPI.COMM_WORLD
        job.check("parallel", ranks, comm.size, "ranks")
        with guard(comm):
            rows = cut_mlp.measure(comm, units, width, batch, repeats, device, torch)
            if first:
                _show(rows, form)
            else:
                for _ in rows:
                    pass

    return job.run("parallel", ranks, rank, what="ranks", bind=device == "cpu")


def _show(rows: Iterable[dict[str, Any]], form: str | None) -> None:
    """Prints each row as it comes."""
    if form != "json":
        click.echo(markdown.head(COLUMNS) if form else _line(COLUMNS))
    for row in rows:
        one, all_of_them = row["one_seconds"], row["tensor_seconds"]
        theirs = row["torch_seconds"]
        peer = ("-", "-") if theirs is None else (format_seconds(theirs), f"{theirs / all_of_them:.2f}")
        cells = (row["model"], format_seconds(one), format_seconds(all_of_them), f"{one / all_of_them:.2f}", *peer)
        click.echo(json.dumps(row) if form == "json" else markdown.line(cells) if form else _line(cells))
    if not form:
        click.echo("median step of the slowest rank; results verified")


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (17, 9, 9, 6, 9, 6), strict=True))
