"""`psgd bench train`: samples/s and accuracy beside PyTorch's on the same model, data, batch and epochs."""

import json
import math
import sys
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch import ranks
from psgd.launch.bench.torch_rpc import installed

OURS = ("single", "sync", "async")
PEERS = {"single": "torch", "sync": "ddp", "async": "hogwild"}
MODES = (*OURS, *PEERS.values())
COLUMNS = ("mode", "samples/s", "accuracy", "95 %", "against", "ratio")


@click.command()
@click.option("--dataset", default="fashion-mnist", show_default=True, help="As psgd train's.")
@click.option("--model", default="mlp", show_default=True, metavar="softmax|mlp|cnn", help="Network.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True, help="Passes over the training set.")
@click.option(
    "--seeds", type=click.IntRange(1), default=5, show_default=True, help="Runs of each mode: seeds 0, 1, ..."
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Samples per worker and step."
)
@click.option("--lr", type=float, default=0.1, show_default=True, help="Learning rate.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes that compute.")
@click.option("--modes", default=",".join(MODES), show_default=True, help="Which to run, comma-separated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one line a mode.")
def train(
    *,
    dataset: str,
    model: str,
    epochs: int,
    seeds: int,
    batch_size: int,
    lr: float,
    workers: int,
    modes: str,
    as_json: bool,
) -> int:
    """Train with psgd and with PyTorch, in turn, and compare.

    single: one process. sync, async: a server and the workers. torch: PyTorch, one process, one thread. ddp:
    its DistributedDataParallel over Gloo. hogwild: its processes on shared memory. Timed is the training loop
    without start-up or evaluation. The ratio is psgd's samples/s over that peer's.
    """
    if ranks.place() is not None:
        raise UsageError("bench train: starts the processes of each mode itself; run it without mpirun or srun")
    chosen = _modes(modes)
    if not (math.isfinite(lr) and lr > 0):
        raise UsageError(f"--lr: expected a finite number above 0, got {lr}")
    _check(dataset, model)
    if not installed() and set(chosen) - set(OURS):
        chosen = [mode for mode in chosen if mode in OURS]
        click.echo("psgd: PyTorch is not installed: its modes are left out", err=True)
        if not chosen:
            raise UsageError("--modes: none is left without PyTorch; install it, or add single, sync or async")

    from psgd.launch.bench import train_runs
    from psgd.launch.bench.torch_options import Options

    options = Options("", dataset, model, epochs, batch_size, lr, 0, workers)
    runs = train_runs.run(chosen, options, seeds, _tell if sys.stderr.isatty() else None)
    rows = train_runs.summarize(runs, PEERS)
    if not as_json and rows:
        click.echo(_line(COLUMNS))
    for row in rows:
        click.echo(json.dumps(row) if as_json else _line(_cells(row)))
    return 0 if len(rows) == len(chosen) else 1


def _modes(text: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in MODES:
            raise UsageError(f"--modes: expected some of {','.join(MODES)}, got {name!r}")
    return list(dict.fromkeys(chosen))


def _check(dataset: str, model: str) -> None:
    """Refuses what no mode could run, before any of them starts.

    Raises:
        UsageError: no such data or model, or a model that cannot take the data.
    """
    from psgd.data import load
    from psgd.nn import models

    data = load(dataset)
    models.build(model, data.sample_shape, data.classes)


def _tell(mode: str, seed: int, result: dict[str, Any]) -> None:
    speed, accuracy = result["samples_per_second"], result["test_accuracy"]
    click.echo(f"seed {seed} {mode}: {speed:,.0f} samples/s, accuracy {accuracy:.4f}", err=True)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    interval, ratio = row["test_accuracy_interval"], row["ratio"]
    return (
        row["mode"],
        f"{row['samples_per_second']:,.0f}",
        f"{row['test_accuracy']:.4f}",
        "-" if interval is None else f"± {interval:.4f}",
        row["against"] or "-",
        "-" if ratio is None else f"{ratio:.2f}",
    )


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, (8, 10, 8, 8, 8, 6), strict=True))
