"""`psgd bench peers`: are the peers as fast in psgd's benchmarks as they are alone?"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from psgd.kernels.errors import UsageError
from psgd.launch import ranks as places
from psgd.launch.bench import markdown
from psgd.launch.bench.peers import processes
from psgd.launch.bench.sizes import format_seconds, format_size, parse_sizes
from psgd.launch.bench.stats import median
from psgd.launch.whole_numbers import Whole

LIMIT = 1.1
TIMEOUT_S = 300.0
COLUMNS = ("peer", "size", "alone", "in the benchmark", "ratio")
Times = dict[tuple[str, int], float]


@click.command()
@click.option("--sizes", default="4KiB,1MiB,16MiB", show_default=True, help="Sizes in bytes, comma-separated.")
@click.option("--ranks", type=Whole(2), default=2, show_default=True, help="Number of ranks of the all-reduces.")
@click.option(
    "--turns", type=Whole(1), default=3, show_default=True, help="Number of runs of each; medians are reported."
)
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def peers(*, sizes: str, ranks: int, turns: int, form: str | None) -> int:
    """Compare each peer alone, as its own users run it, with the same peer in psgd's benchmarks.

    "Alone" means scripts without psgd: Gloo and PyTorch's RPC in plain processes, MPI under its mpiexec. The exit
    code is 1 if a peer takes more than 10 % longer in a benchmark than alone. Close other programs first.
    """
    places.refuse("bench peers")
    nbytes = parse_sizes(sizes)
    if len({*nbytes}) < len(nbytes):
        raise UsageError(f"--sizes: expected each size once, got {sizes}")
    alone: list[Times] = []
    within: list[Times] = []
    for _ in range(turns):
        alone.append(_alone(nbytes, ranks))
        within.append(_within(nbytes, ranks))
    worst = 0.0
    if form != "json":
        click.echo(markdown.head(COLUMNS) if form else _line(COLUMNS))
    for key in [key for key in alone[0] if key in within[0]]:
        ours, theirs = (median([times[key] for times in each]) for each in (within, alone))
        worst = max(worst, ours / theirs)
        cells = (key[0], format_size(key[1]), format_seconds(theirs), format_seconds(ours), f"{ours / theirs:.2f}")
        if form == "json":
            row = {"peer": key[0], "nbytes": key[1], "alone_seconds": theirs, "seconds": ours, "ratio": ours / theirs}
            click.echo(json.dumps(row))
        else:
            click.echo(markdown.line(cells) if form else _line(cells))
    if worst > LIMIT:
        click.echo(f"psgd: error: bench peers: a peer takes {worst:.2f} times as long as alone", err=True)
    return int(worst > LIMIT)


def _alone(sizes: Sequence[int], ranks: int) -> Times:
    """Runs the scripts."""
    from psgd.launch.bench.collective import mpi_best

    listed = ",".join(map(str, sizes))
    runs: dict[str, list[str]] = {
        "MPI": [*mpi_best.mpiexec_words(ranks, ""), *_script("mpi", listed)],
        "raw MPI": [*mpi_best.mpiexec_words(2, ""), *_script("exchange", listed)],
    }
    if processes.has_torch():
        runs |= {"Gloo": _script("gloo", str(ranks), listed), "torch RPC": _script("rpc", listed)}
    return {
        (peer, int(nbytes)): seconds
        for peer, command in runs.items()
        for nbytes, seconds in json.loads(processes.output(command, TIMEOUT_S).strip().splitlines()[-1]).items()
    }


def _within(sizes: Sequence[int], ranks: int) -> Times:
    """Runs psgd's benchmarks; a peer that one of them left out is missing."""
    listed = ",".join(map(str, sizes))
    reduced = ("allreduce", "--ranks", str(ranks), "--buffers", "private", "--no-mpi-best")
    found: Times = {}
    pushed = {"raw MPI": "raw_mpi_seconds", "torch RPC": "torch_rpc_seconds"}
    for command, names in ((reduced, {"MPI": "mpi", "Gloo": "gloo"}), (("pushpull",), pushed)):
        words = processes.python("psgd.launch", "bench", *command, "--sizes", listed, "--json")
        for line in processes.output(words, TIMEOUT_S).splitlines():
            row = json.loads(line)
            times = row.get("against", row)
            found |= {(peer, row["nbytes"]): times[key] for peer, key in names.items() if times[key] is not None}
    return found


def _script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name(f"{name}_alone.py")), *arguments]


def _line(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (9, 8, 9, 16, 5), strict=True))
