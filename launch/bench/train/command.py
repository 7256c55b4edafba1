"""`psgd bench train`: every strategy's speed, accuracy and time to an accuracy, beside PyTorch on the same task."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from psgd import config
from psgd.kernels.errors import UsageError
from psgd.launch import ranks
from psgd.launch.bench import markdown
from psgd.launch.bench.peers.processes import has_torch
from psgd.launch.bench.train.settings import ON, STRATEGIES
from psgd.launch.whole_numbers import Whole
from psgd.runtime import faults

TRAIN = config.options()


@click.command()
@click.option("--dataset", default="fashion-mnist", show_default=True, help="Data to train on, as for psgd train.")
@click.option(
    "--model", default="mlp", show_default=True, metavar="|".join(TRAIN["model"].names), help=TRAIN["model"].help
)
@click.option("--epochs", type=Whole(1), default=10, show_default=True, help=TRAIN["epochs"].help)
@click.option(
    "--seeds",
    type=Whole(1),
    default=5,
    show_default=True,
    help="Number of runs of each contender, with seeds 0, 1, ...",
)
@click.option("--batch-size", type=Whole(1), default=64, show_default=True, help=TRAIN["batch_size"].help)
@click.option("--lr", type=float, default=0.1, show_default=True, help=TRAIN["lr"].help)
@click.option(
    "--workers",
    type=Whole(1),
    default=2,
    show_default=True,
    help="Number of processes that compute gradients.",
)
@click.option(
    "--strategies", default=",".join(STRATEGIES), show_default=True, help="psgd's strategies, comma-separated."
)
@click.option(
    "--peers", default=None, help="PyTorch's contenders, comma-separated, or none.  [default: all for the device]"
)
@click.option(
    "--device", type=click.Choice(tuple(ON)), default="cpu", show_default=True, help="cuda: one GPU per worker."
)
@click.option(
    "--target-accuracy",
    type=float,
    default=0.0,
    metavar="X",
    help="Also measure the time to this accuracy.  [default: off]",
)
@click.option(
    "--inject", default="", metavar="SPEC", help="Slow workers: the slow and compute parts of psgd train --inject."
)
@click.option("--plot", type=Path, metavar="FILE", help="Also draw a plot.")
@click.option(
    "--bandwidth",
    metavar="RATE[,RATE]",
    help="Instead, compare whole and compressed updates across simulated hosts, linked at 1gbit, 100mbit, ... (root).",
)
@click.option(
    "--hidden", type=Whole(1), default=256, show_default=True, help="With --bandwidth: number of hidden units."
)
@click.option(
    "--density", type=float, default=1e-3, show_default=True, help="With --bandwidth: density of compressed updates."
)
@click.option(
    "--json", "form", flag_value="json", help="Print one JSON object per line, one line per strategy or peer."
)
@click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table.")
def train(
    *,
    dataset: str,
    model: str,
    epochs: int,
    seeds: int,
    batch_size: int,
    lr: float,
    workers: int,
    strategies: str,
    peers: str | None,
    device: str,
    target_accuracy: float,
    inject: str,
    plot: Path | None,
    bandwidth: str | None,
    hidden: int,
    density: float,
    form: str | None,
) -> int:
    """Train with psgd's strategies and with PyTorch in turn, and compare them.

    Strategies run with their documented settings; single is one process. torch is PyTorch in one process, ddp its
    DistributedDataParallel over Gloo, and torch-hogwild its processes on shared memory. On GPUs, ddp uses NCCL, and
    torch-graph is PyTorch in one process with its step captured as a CUDA graph. The time is that of the training
    loop, without start-up; it includes evaluations only with --target-accuracy. The ratio is psgd's samples/s divided
    by the peer's.
    """
    ranks.refuse("bench train")
    names = _chosen("--strategies", strategies, STRATEGIES)
    theirs = [] if peers == "none" else _chosen("--peers", peers or ",".join(ON[device]), ON[device])
    TRAIN["lr"].check("--lr", lr)
    TRAIN["target_accuracy"].check("--target-accuracy", target_accuracy)
    faults.check(inject, workers, only_slow=True)
    _check(dataset, model, plot)
    if bandwidth is not None:
        return _over_links(
            bandwidth.split(","),
            form,
            dataset,
            model,
            hidden,
            epochs,
            batch_size,
            lr,
            workers,
            density,
            target_accuracy,
        )
    if theirs and not has_torch():
        theirs = []
        click.echo("psgd: PyTorch is not installed: its peers are omitted", err=True)

    from psgd.launch.bench.peers.torch_options import TorchOptions
    from psgd.launch.bench.train import picture, table
    from psgd.launch.bench.train import runs as train_runs

    options = TorchOptions("", dataset, model, epochs, batch_size, lr, 0, workers, inject, target_accuracy > 0, device)
    runs = train_runs.run([*names, *theirs], options, seeds, _tell if sys.stderr.isatty() else None)
    rows = train_runs.summarize(runs, options, target_accuracy)
    if form == "json":
        for row in rows:
            click.echo(json.dumps(row))
    elif rows:
        click.echo(table.as_markdown(rows) if form else table.table(rows, target_accuracy))
    if plot is not None and rows:
        picture.draw(rows, options, target_accuracy, plot)
    return 0 if len(rows) == len(names) + len(theirs) else 1


def _over_links(rates: Sequence[str], form: str | None, *task: Any) -> int:
    from psgd.launch.bench.train import link

    link.harness()
    line = markdown.line if form else link.line
    if form != "json":
        click.echo(markdown.head(link.COLUMNS) if form else line(link.COLUMNS))

    def tell(row: dict[str, Any]) -> None:
        click.echo(json.dumps(row) if form == "json" else line(link.cells(row)))

    rows = link.run(link.LinkTask(*task), rates, 0, tell)
    return 0 if len(rows) == len(rates) * len(link.FORMS) else 1


def _chosen(flag: str, text: str, known: Sequence[str]) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise UsageError(f"{flag}: expected one or more of {','.join(known)}, got {name!r}")
    return list(dict.fromkeys(chosen))


def _check(dataset: str, model: str, plot: Path | None) -> None:
    """Refuses what no run could do, before any of them starts.

    Raises:
        UsageError: no such data or model, a model that cannot take the data, or a picture that cannot be drawn.
    """
    from psgd.data import load
    from psgd.nn import models

    data = load(dataset)
    if data.tokens:
        raise UsageError(
            f"bench train: --dataset {dataset}: expected samples with one class each; for text: psgd bench gpt"
        )
    models.build(model, data.sample_shape, data.classes)
    if plot is not None:
        from psgd.launch.output import picture

        picture.check("--plot", plot)


def _tell(name: str, seed: int, result: dict[str, Any]) -> None:
    speed, accuracy = result["samples_per_second"], result["test_accuracy"]
    click.echo(f"seed {seed} {name}: {speed:,.0f} samples/s, accuracy {accuracy:.4f}", err=True)
