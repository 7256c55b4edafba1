"""`psgd estimate`: the memory that a run will need, by rank, before anything is started."""

import json
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch import options
from psgd.nn.recompute.segments import read_bytes


@click.command()
@click.option("--config", metavar="FILE.toml", help="Read options from this file; flags take precedence.")
@options.train_options
@click.option("--memory", default=None, metavar="BYTES", help="Memory of each rank, as 80GB or 16GiB: says what fits.")
@click.option("--as-in-the-lecture", "taught", is_flag=True, help="Print two sums that are taught, and their gaps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def estimate(config: str | None, memory: str | None, taught: bool, as_json: bool, **flags: Any) -> int:
    """Estimate the memory of each rank of a run of psgd train with the same options. Starts nothing.

    A model of your own file is made of tensors without memory; its file is run for that.

    The exit code is 1 where it does not fit into --memory.
    """
    from psgd.estimate import lecture

    if taught:
        click.echo("\n".join(lecture.lines()))
        return 0
    available = None if memory is None else memory_of(memory)
    chosen = options.build(flags, config)
    from psgd.estimate import table
    from psgd.estimate.rank_memory import BASE_BYTES
    from psgd.launch.memory.refusal import keep_mpi_asleep
    from psgd.launch.train import sizes
    from psgd.launch.view import estimated

    keep_mpi_asleep()
    run = estimated.of_config(chosen, *sizes(chosen))
    found, size = run.ranks, run.parameters
    on = "cuda" if any(each.device == "cuda" for each in found) else "cpu"
    said = [] if available is None else run.verdict(available, on)
    if as_json:
        ranks = [
            {"role": e.role, "ranks": e.ranks, "device": e.device, "bytes": dict(e.rows), "total": e.total}
            for e in found
        ]
        click.echo(json.dumps({"parameters": size, "ranks": ranks, "base": BASE_BYTES, "fits": not said}))
        return 1 if said else 0
    nbytes = table.text(size * int(run.dtype.removeprefix("float")) // 8)
    click.echo(f"{size:,} parameters of {run.dtype}, {nbytes}\n")
    click.echo("\n".join(table.lines(found)))
    click.echo(f"\nbeside it, on the host: Python, MPI and compiled code, about {table.text(BASE_BYTES)} a rank")
    if chosen.spares:
        click.echo("a spare that sleeps needs no more than that")
    for line in said if said or available is None else [f"fits: each rank has {table.text(available)}"]:
        click.echo(line)
    return 1 if said else 0


def memory_of(given: str) -> int:
    """Bytes of a text.

    Raises:
        UsageError: it is none.
    """
    found = read_bytes(given if given.strip()[-1:] in "bB" else f"{given}B")
    if found is None:
        raise UsageError(f"--memory: expected bytes above 0, as 80GB or 16GiB, got {given!r}")
    return found
