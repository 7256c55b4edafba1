"""`psgd bench ddp`: a training step of DDP over Gloo, of DDP with psgd's hook, and of psgd's all-reduce."""

import json
from collections.abc import Iterable
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.bench import markdown
from psgd.launch.bench.sizes import format_seconds, format_size, parse_counts, parse_sizes
from psgd.launch.whole_numbers import Whole

COLUMNS = ("step", "DDP/Gloo", "hook", "ratio", "psgd", "ratio", "no messages")
GPU_COLUMNS = ("batch", "DDP/NCCL", "hook", "ratio", "psgd", "ratio", "no messages", "bucket")


@click.command()
@click.option(
    "--sizes", default="1MiB,25MiB", show_default=True, help="Sizes of DDP's buckets in bytes, comma-separated."
)
@click.option("--buckets", type=Whole(1), default=4, show_default=True, help="Number of buckets of each size.")
@click.option("--ranks", type=Whole(2), default=2, show_default=True, help="Number of ranks.")
@click.option("--repeats", type=Whole(1), default=50, show_default=True, help="Timed steps of each contender.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where it runs.")
@click.option("--batch", default="64,128,256", show_default=True, help="Samples of a rank's step, on GPUs.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def ddp(*, sizes: str, buckets: int, ranks: int, repeats: int, device: str, batch: str, form: str | None) -> int:
    """Time steps of PyTorch's DistributedDataParallel over Gloo, with psgd's hook, and of psgd's allreduce.

    A row of a size is forward and backward of a module that computes next to nothing, so that little but the all-reduce
    of its buckets is timed. The last row is a whole step of a small ResNet with BatchNorm and SGD with momentum.
    Results are verified first: all have the same gradients, and on two ranks the same loss bit for bit. Contenders take
    turns; Gloo may use all cores, psgd's ranks have one each. A ratio is DDP/Gloo's time over psgd's.

    With --device cuda it is DDP over NCCL, with the fastest of several bucket sizes, and each row a whole step of a
    ResNet-18 on images of 3 x 32 x 32. --repeats counts rounds of ten steps there.
    """
    from psgd.launch.bench import job
    from psgd.launch.bench.peers.processes import has_torch

    nbytes, samples = parse_sizes(sizes), parse_counts("--batch", batch)
    if not has_torch():
        raise UsageError("bench ddp: expected PyTorch, which is not installed: pip install 'psgd[torch]'")

    def rank(first: bool) -> None:
        from mpi4py import MPI

        from psgd.launch.bench.ddp import on_gpu
        from psgd.launch.bench.ddp import ranks as bodies
        from psgd.runtime.fail_together import guard

        comm = MPI.COMM_WORLD
        job.check("ddp", ranks, comm.size, "ranks")
        with guard(comm):
            if device == "cuda":
                rows = on_gpu.measure(comm, samples, repeats)
            else:
                rows = bodies.measure(comm, nbytes, buckets, repeats)
            if first:
                _show(rows, form, GPU_COLUMNS if device == "cuda" else COLUMNS)
            else:
                for _ in rows:
                    pass

    return job.run("ddp", ranks, rank, what="ranks", bind=device == "cpu")


def _show(rows: Iterable[dict[str, Any]], form: str | None, columns: tuple[str, ...]) -> None:
    """Prints each row as it comes."""
    if form != "json":
        click.echo(markdown.head(columns) if form else _line(columns))
    for row in rows:
        cells = _cells(row)
        click.echo(json.dumps(row) if form == "json" else markdown.line(cells) if form else _line(cells))
    if not form:
        click.echo("median step of the slowest rank; results verified")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "batch" in row:
        name, theirs, end = str(row["batch"]), row["peer_seconds"], [f"{row['bucket_mb']} MiB"]
    else:
        name = f"{row['buckets']} x {format_size(row['nbytes'])}" if row["nbytes"] else "ResNet"
        theirs, end = row["gloo_seconds"], []
    hook, own = row["hook_seconds"], row["psgd_seconds"]
    ratio = "-" if own is None else f"{theirs / own:.2f}"
    times = (format_seconds(own), ratio, format_seconds(row["alone_seconds"]))
    return (name, format_seconds(theirs), format_seconds(hook), f"{theirs / hook:.2f}", *times, *end)


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (11, 9, 9, 6, 9, 6, 11, 7), strict=False))
