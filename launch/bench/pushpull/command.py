"""`psgd bench pushpull`: push a gradient and pull the parameters, against raw MPI and PyTorch's RPC."""

import contextlib
import json
from collections.abc import Iterable
from typing import Any

import click

from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.launch.bench import markdown
from psgd.launch.bench.sizes import format_seconds, format_size, parse_sizes
from psgd.launch.bench.stats import ratio
from psgd.launch.output import exit_status
from psgd.launch.whole_numbers import Whole

COLUMNS = ("size", "psgd", "raw MPI", "ratio", "with update", "ratio", "torch RPC", "ratio", "GB/s")


@click.command()
@click.option(
    "--sizes",
    default="4KiB,64KiB,1MiB,16MiB,64MiB",
    show_default=True,
    help="Sizes of the float32 vector in bytes, comma-separated.",
)
@click.option("--servers", type=Whole(1), default=1, show_default=True, help="Number of servers.")
@click.option("--workers", type=Whole(1), default=1, show_default=True, help="Number of workers.")
@click.option(
    "--replicas",
    type=click.Choice(["0", "1"]),
    default="0",
    show_default=True,
    help="1: also time servers that hold each shard twice, and kill one.",
)
@click.option("--repeats", type=Whole(1), help="Timed steps per size.  [default: 20 to 2000, by size]")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def pushpull(*, sizes: str, servers: int, workers: int, replicas: str, repeats: int | None, form: str | None) -> int:
    """Time push + pull, and compare with raw MPI and PyTorch's RPC. Verifies the results first.

    The ratio to raw MPI is psgd's time over MPI's (1 is the best possible), with and without one pass of SGD
    between receive and reply. The ratio to RPC is RPC's time over psgd's: how many times faster psgd is.

    With --replicas 1 a line for each size has the time with replicas and the share of the throughput that is left, and
    the last one how long a worker waited when a server was killed. Needs Open MPI 5.
    """
    from psgd.launch.bench import job

    nbytes = parse_sizes(sizes)
    count = servers + workers
    twice = int(replicas)
    if twice and servers < 2:
        raise UsageError(f"--replicas 1: expected 2 servers or more, got {servers}: add --servers 2")

    def rank(first: bool) -> None:
        _rank(first=first, sizes=nbytes, servers=servers, count=count, replicas=twice, repeats=repeats, form=form)

    return job.run("pushpull", count, rank, survives=twice > 0)


def _rank(
    *, first: bool, sizes: list[int], servers: int, count: int, replicas: int, repeats: int | None, form: str | None
) -> None:
    """One rank's part. PyTorch's processes start before MPI does: nothing may fork afterwards."""
    from psgd.launch.bench import job
    from psgd.launch.bench.peers import processes, torch_rpc

    peer = torch_rpc.RpcPeer() if first and processes.has_torch() else None
    with peer or contextlib.nullcontext():
        from mpi4py import MPI

        from psgd.launch.bench.peers import cores
        from psgd.launch.bench.pushpull import ranks
        from psgd.runtime.fail_together import guard
        from psgd.runtime.ulfm import switch
        from psgd.runtime.ulfm.leave import leave

        comm = MPI.COMM_WORLD
        if first and replicas:
            exit_status.report_begun()
        job.check("pushpull", count, comm.size)
        with guard(comm):
            cores.pin(comm)
            if replicas and not switch.enabled():
                raise AgreedUsageError("--replicas 1: expected ranks started by psgd or by mpirun --with-ft ulfm")
            rows = ranks.measure(comm, sizes, servers, repeats, peer, replicas)
            if first:
                _show(rows, form, peer is not None)
            else:
                for _ in rows:
                    pass
            if replicas:
                waited = ranks.pause(comm, max(sizes) // 4, servers)
                if first:
                    said = {"nbytes": max(sizes), "pause_seconds": waited}
                    click.echo(json.dumps(said) if form == "json" else f"a server killed: {format_seconds(waited)}")
    if replicas:
        exit_status.report(0)
        leave(comm, 0)


def _show(rows: Iterable[dict[str, Any]], form: str | None, has_torch: bool) -> None:
    """Prints each row as it comes."""
    if form != "json":
        click.echo(markdown.head(COLUMNS) if form else _line(COLUMNS))
    row: dict[str, Any] = {}
    for row in rows:
        cells = _cells(row)
        click.echo(json.dumps(row) if form == "json" else markdown.line(cells) if form else _line(cells))
        if form != "json" and (twice := row.get("replicated_seconds")):
            click.echo(f"    each shard twice: {format_seconds(twice)}, {row['seconds'] / twice:.0%} of the throughput")
    if not form:
        click.echo(f"median push + pull of the slowest rank; {row['mpi']}; parameters verified")
        if row["torch_rpc_seconds"] is None:
            click.echo("torch RPC: " + ("its processes failed" if has_torch else "PyTorch is not installed"))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ours, raw, update, rpc = (
        row[key] for key in ("seconds", "raw_mpi_seconds", "raw_mpi_update_seconds", "torch_rpc_seconds")
    )
    faster = ratio(rpc, ours)
    return (
        format_size(row["nbytes"]),
        format_seconds(ours),
        format_seconds(raw),
        f"{ours / raw:.2f}",
        format_seconds(update),
        f"{ours / update:.2f}",
        format_seconds(rpc),
        "-" if faster is None else f"{faster:.1f}",
        f"{row['gbs']:.2f}",
    )


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (8, 9, 9, 6, 11, 6, 9, 6, 6), strict=True))
