"""`psgd bench ddp`: a training step of DDP over Gloo, of DDP with psgd's hook, and of psgd's all-reduce."""

import json
from collections.abc import Iterable
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.bench import markdown
from psgd.launch.bench.sizes import format_seconds, format_size, parse_sizes
from psgd.launch.whole_numbers import Whole

COLUMNS = ("step", "DDP/Gloo", "hook", "ratio", "psgd", "ratio", "no messages")


@click.command()
@click.option(
    "--sizes", default="1MiB,25MiB", show_default=True, help="Sizes of DDP's buckets in bytes, comma-separated."
)
@click.option("--buckets", type=Whole(1), default=4, show_default=True, help="Number of buckets of each size.")
@click.option("--ranks", type=Whole(2), default=2, show_default=True, help="Number of ranks.")
@click.option("--repeats", type=Whole(1), default=50, show_default=True, help="Timed steps of each contender.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def ddp(*, sizes: str, buckets: int, ranks: int, repeats: int, form: str | None) -> int:
    """Time steps of PyTorch's DistributedDataParallel over Gloo, with psgd's hook, and of psgd's allreduce.

    A row of a size is forward and backward of a module that computes next to nothing, so that little but the all-reduce
    of its buckets is timed. The last row is a whole step of a small ResNet with BatchNorm and SGD with momentum.
    Results are verified first: all have the same gradients, and on two ranks the same loss bit for bit. Contenders take
    turns; Gloo may use all cores, psgd's ranks have one each. A ratio is DDP/Gloo's time over psgd's.
    """
    from psgd.launch.bench import job
    from psgd.launch.bench.peers.processes import has_torch

    nbytes = parse_sizes(sizes)
    if not has_torch():
        raise UsageError("bench ddp: expected PyTorch, which is not installed: pip install 'psgd[torch]'")

    def rank(first: bool) -> None:
        from mpi4py import MPI

        from psgd.launch.bench.ddp import ranks as bodies
        from psgd.runtime.fail_together import guard

        comm = MPI.COMM_WORLD
        job.check("ddp", ranks, comm.size, "ranks")
        with guard(comm):
            rows = bodies.measure(comm, nbytes, buckets, repeats)
            if first:
                _show(rows, form)
            else:
                for _ in rows:
                    pass

    return job.run("ddp", ranks, rank, what="ranks")


def _show(rows: Iterable[dict[str, Any]], form: str | None) -> None:
    """Prints each row as it comes."""
    if form != "json":
        click.echo(markdown.head(COLUMNS) if form else _line(COLUMNS))
    for row in rows:
        cells = _cells(row)
        click.echo(json.dumps(row) if form == "json" else markdown.line(cells) if form else _line(cells))
    if not form:
        click.echo("median step of the slowest rank; results verified")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{row['buckets']} x {format_size(row['nbytes'])}" if row["nbytes"] else "ResNet"
    gloo, hook, own = row["gloo_seconds"], row["hook_seconds"], row["psgd_seconds"]
    ratio = "-" if own is None else f"{gloo / own:.2f}"
    times = (format_seconds(own), ratio, format_seconds(row["alone_seconds"]))
    return (name, format_seconds(gloo), format_seconds(hook), f"{gloo / hook:.2f}", *times)


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (11, 9, 9, 6, 9, 6, 11), strict=True))
