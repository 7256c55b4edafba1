"""`psgd bench offload`: steps with the optimizer or the layers on the host, beside the GPU's, the bus's and its own."""

import json
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.bench import markdown
from psgd.launch.bench.sizes import parse_counts
from psgd.launch.whole_numbers import Whole
from psgd.optim.catalog import RULES

COLUMNS = (
    *("batch", "--offload", "compute", "bus", "update", "step", "of the longest", "without", "of without"),
    *("GPU memory", "of the formula", "verified"),
)


@click.command()
@click.option("--device", default="cuda", show_default=True, metavar="cuda", help="Device to run on.")
@click.option("--layers", type=Whole(1), default=12, show_default=True, help="Layers of the transformer.")
@click.option("--width", type=Whole(1), default=1024, show_default=True, help="Features of a token.")
@click.option("--heads", type=Whole(1), default=16, show_default=True, help="Heads of attention.")
@click.option("--context", type=Whole(1), default=512, show_default=True, help="Tokens of a sample.")
@click.option("--vocabulary", type=Whole(2), default=2048, show_default=True, help="Classes of a token.")
@click.option("--batch-sizes", default="2,16", show_default=True, metavar="N,...", help="Samples of a step.")
@click.option("--optimizer", default="adam", show_default=True, metavar="|".join(RULES), help="Update rule.")
@click.option("--threads", type=Whole(1), default=None, help="Threads that update; as in training if omitted.")
@click.option("--steps", type=Whole(1), default=4, show_default=True, help="Steps of a round.")
@click.option("--repeats", type=Whole(1), default=5, show_default=True, help="Timed rounds.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def offload(*, device: str, batch_sizes: str, optimizer: str, form: str | None, **chosen: Any) -> int:
    """Time steps of a transformer whose optimizer, or layers, are on the host, and what such a step consists of.

    In one run, each by itself: forward and backward on the GPU; all copies of a step, both ways at once; the update on
    the host; a step with everything on the GPU; and offloaded steps, which should take little more than the longest
    part. Verified first: after some steps all have the same parameters, bit for bit (but `late`, which is
    --offload-staleness 1, and only has to repeat).
    """
    if device != "cuda":
        raise UsageError(f"--device: expected cuda, got {device!r}: workers on cores have everything on the host")
    if optimizer not in RULES:
        raise UsageError(f"--optimizer: expected one of {', '.join(RULES)}, got {optimizer!r}")
    sizes = parse_counts("--batch-sizes", batch_sizes)
    from psgd.collectives.device.pick_gpu import visible_devices

    visible_devices()
    from psgd.launch.bench.kernels.measure import card
    from psgd.launch.bench.offload import measure

    trial = measure.OffloadTrial(rule=optimizer, **chosen)
    rows = []
    if form == "markdown":
        click.echo(markdown.head(COLUMNS))
    elif form is None:
        click.echo(_line(COLUMNS))
    for row in measure.rows(trial, sizes):
        rows.append(row)
        shown = {None: _line, "markdown": markdown.line}.get(form)
        click.echo(json.dumps(row) if shown is None else shown(cells(row)))
    if form is None:
        click.echo(f"{card()}, {rows[0]['parameters']:,} parameters, {optimizer}, medians of {trial.repeats} rounds")
    return 0 if all(row["verified"] for row in rows) else 1


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of a table."""
    times = (f"{1e3 * row[name]:.1f} ms" for name in ("compute", "bus", "update", "step"))
    longest = max(row[name] for name in ("compute", "bus", "update"))
    return (
        *(str(row["batch_size"]), row["offload"], *times, f"{row['step'] / longest:.2f}"),
        *(f"{1e3 * row['without']:.1f} ms", f"{row['step'] / row['without']:.2f}"),
        *(f"{row['device_bytes'] / 1e9:.2f} GB", f"{row['device_bytes'] / row['expected_bytes']:.3f}"),
        "yes" if row["verified"] else "NO",
    )


def _line(values: tuple[str, ...]) -> str:
    return "".join(value.rjust(15) for value in values)
