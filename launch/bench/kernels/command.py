"""`psgd bench kernels`: the GPU's kernels against the host's, then their bandwidth beside a copy's."""

import json
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.bench.sizes import format_seconds
from psgd.launch.whole_numbers import Whole

COLUMNS = ("kernel", "bytes/element", "time", "GB/s", "of copy", "verified")


@click.command()
@click.option("--device", default="cuda", show_default=True, metavar="cuda", help="Device to run on.")
@click.option("--elements", type=Whole(1024), default=1 << 26, show_default=True, help="Number of float32 elements.")
@click.option("--repeats", type=Whole(3), default=20, show_default=True, help="Timed calls of each kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def kernels(*, device: str, elements: int, repeats: int, as_json: bool) -> int:
    """Time the GPU's kernels, and compare them with a device-to-device copy. Counts bytes read and written.

    Verifies them first, on other data: update rules, elastic pulls and weighted sums equal the host's bit for bit, the
    others up to rounding. Times are medians, measured with device events.
    """
    if device != "cuda":
        raise UsageError(f"--device: expected cuda, got {device!r}: psgd bench train times the host")
    from psgd.collectives.device.pick_gpu import visible_devices

    visible_devices()
    from psgd.launch.bench.kernels import measure

    rows = measure.measure(elements, repeats)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        click.echo(_line(COLUMNS))
        for row in rows:
            click.echo(_line(_cells(row)))
        click.echo(f"{measure.card()}, {elements:,} elements of float32, medians of {repeats}")
    return 0 if all(row["verified"] for row in rows) else 1


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    share, seconds = f"{row['of_copy']:.2f}", format_seconds(row["seconds"])
    size, speed = f"{row['bytes_per_element']:g}", f"{row['gbs']:.0f}"
    return row["kernel"], size, seconds, speed, share, "yes" if row["verified"] else "NO"


def _line(cells: tuple[str, ...]) -> str:
    return cells[0].ljust(20) + "".join(cell.rjust(14) for cell in cells[1:])
