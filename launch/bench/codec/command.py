"""`psgd bench codec`: bits for an entry against the entropy, encode and decode time against a copy."""

import json
from collections.abc import Iterator
from typing import Any

import click

from psgd.kernels.codecs.catalog import CODECS
from psgd.kernels.errors import UsageError
from psgd.launch.bench.sizes import format_seconds, format_size, parse_sizes
from psgd.launch.whole_numbers import Whole

DATA = ("random", "recorded")
COLUMNS = ("data", "codec", "size", "density", "bits", "entropy", "encode", "decode", "copy", "add", "GB/s")
WIDTHS = (8, 9, 7, 8, 6, 7, 8, 8, 8, 8, 6)


@click.command()
@click.option("--codecs", default=",".join(CODECS), show_default=True, help="Codecs, comma-separated.")
@click.option(
    "--densities",
    default="1e-1,1e-2,1e-3,1e-4,1e-5",
    show_default=True,
    help="Shares of elements to send, comma-separated.",
)
@click.option(
    "--sizes", default="4MiB,64MiB", show_default=True, help="Sizes of the float32 vector in bytes, comma-separated."
)
@click.option(
    "--data", default=",".join(DATA), show_default=True, help="Random updates, or gradients recorded in training."
)
@click.option("--repeats", type=Whole(1), default=20, show_default=True, help="Number of timed updates.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def codec(*, codecs: str, densities: str, sizes: str, data: str, repeats: int, as_json: bool) -> None:
    """Measure the codecs: bits per entry, and times compared with a copy and an addition of the vector.

    Runs on one core. Verifies first that what is sent plus the residual is what was put in. Bits are for an entry's
    place and sign, including headers; the entropy is for its place alone, at the measured density.
    """
    names, kinds = _some("--codecs", codecs, tuple(CODECS)), _some("--data", data, DATA)
    rows = _rows(names, kinds, _densities(densities), parse_sizes(sizes), repeats)
    if not as_json:
        click.echo(_line(COLUMNS))
    for row in rows:
        click.echo(json.dumps(row) if as_json else _line(_cells(row)))
    if not as_json:
        click.echo("medians of one core; verified; bits with the sign, without topk's values; entropy without the sign")


def _rows(
    names: list[str], kinds: list[str], densities: list[float], sizes: list[int], repeats: int
) -> Iterator[dict[str, Any]]:
    from psgd.launch.bench.codec import data as codec_data
    from psgd.launch.bench.codec.measure import measure

    for nbytes in sizes:
        for kind in kinds:
            updates = codec_data.recorded(nbytes // 4) if kind == "recorded" else []
            for i, density in enumerate(densities):
                if kind == "random":
                    updates = codec_data.random(nbytes // 4, density, i)
                for name in names:
                    if CODECS[name].has_density or i == 0:
                        fixed = {"tau": codec_data.TAU, "adapt": False}
                        options = fixed if (kind, name) == ("random", "threshold") else {}
                        yield {"data": kind, **measure(name, density, updates, repeats, options)}


def _some(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise UsageError(f"{option}: expected one or more of {','.join(known)}, got {name!r}")
    return list(dict.fromkeys(chosen))


def _densities(text: str) -> list[float]:
    densities = []
    for part in text.split(","):
        try:
            density = float(part)
        except ValueError:
            density = -1.0
        if not 0.0 < density <= 1.0:
            raise UsageError(f"--densities: expected numbers above 0 and at most 1, got {part.strip()!r}")
        densities.append(density)
    return densities


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    times = (format_seconds(row[f"{key}_seconds"]) for key in ("encode", "decode", "copy", "add"))
    bits, entropy = f"{row['bits_per_entry']:.2f}", f"{row['entropy_bits']:.2f}"
    size = format_size(round(row["n"] / 2**18) * 2**20 if row["n"] >= 2**18 else 4 * row["n"])
    return (row["data"], row["codec"], size, f"{row['density']:.2g}", bits, entropy, *times, f"{row['gbs']:.2f}")


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
