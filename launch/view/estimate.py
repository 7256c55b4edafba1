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

    The exit code is 1 where it does not fit into --memory.
    """
    from psgd.estimate import lecture

    if taught:
        click.echo("\n".join(lecture.lines()))
        return 0
    available = None if memory is None else memory_of(memory)
    chosen = options.build(flags, config)
    from psgd.backend.interface import evaluated_at_once
    from psgd.data import load
    from psgd.estimate import activations
    from psgd.estimate.pieces import of_mesh
    from psgd.estimate.rank_memory import BASE_BYTES, of_run
    from psgd.estimate.verdict import text, verdict
    from psgd.launch.train import sizes
    from psgd.nn.models import build
    from psgd.user import reference

    if reference.is_reference(chosen.model) or reference.is_reference(chosen.dataset):
        raise UsageError("psgd estimate: expected a model and a dataset by name, or a path to data; it runs no files")
    dataset = load(chosen.dataset, chosen.context)
    own: dict[str, Any] = {"hidden": chosen.hidden, **chosen.of_the_model()}
    model = build(chosen.model, dataset.sample_shape, dataset.classes, tokens=dataset.tokens, **own)
    servers, workers = sizes(chosen)
    said: list[str] = []
    if chosen.parts > 1:
        found = of_mesh(chosen, model, servers, workers)
        most = max(each.total for each in found)
        if available is not None and most > available:
            said = [f"a rank needs {text(most)}, {text(available)} are there: more pieces or microbatches need less"]
    else:
        model = activations.recomputed(model, chosen.recompute, chosen.batch_size)
        found = of_run(chosen, model, servers, workers, evaluated_at_once(model.tokens, chosen.device))
        for each in found:
            said += [] if available is None else verdict(each, available, model, chosen.batch_size)
    if as_json:
        ranks = [
            {"role": e.role, "ranks": e.ranks, "device": e.device, "bytes": dict(e.rows), "total": e.total}
            for e in found
        ]
        click.echo(json.dumps({"parameters": model.layout.size, "ranks": ranks, "base": BASE_BYTES, "fits": not said}))
        return 1 if said else 0
    click.echo(f"{model.layout.size:,} parameters of {model.dtype}, {text(model.layout.size * model.dtype.itemsize)}")
    for each in found:
        click.echo(f"\n{each.role}, {each.ranks} of them, on {each.device}")
        for name, number in sorted(each.rows.items(), key=lambda row: -row[1]):
            click.echo(f"  {name:<34} {text(number):>10}")
        click.echo(f"  {'sum':<34} {text(each.total):>10}")
    click.echo(f"\nbeside it, on the host: Python, MPI and compiled code, about {text(BASE_BYTES)} a rank")
    for line in said:
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
