"""`psgd bench train --bandwidth`: the same training across hosts on slow links, with small updates and with whole ones.

The hosts are made on this machine by the checkout's test harness (docs/hosts.md), one worker on each.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psgd
from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say
from psgd.launch.bench.peers import processes
from psgd.launch.bench.stats import ratio

FORMS: dict[str, dict[str, object]] = {
    "allreduce": {"strategy": "allreduce"},
    "allreduce, threshold": {"strategy": "allreduce", "compress": "threshold"},
    "decentralized": {"strategy": "decentralized", "compress": "threshold"},
}
"""What is compared; the first is what the others are measured against."""
TIMEOUT_S = 1800.0
COLUMNS = ("link", "updates", "ms/step", "KB/step", "accuracy", "s to target", "sooner")
Row = dict[str, Any]


@dataclass(frozen=True)
class LinkTask:
    """What is trained; see the options of `psgd train`. `density` is of the small updates."""

    dataset: str
    model: str
    hidden: int
    epochs: int
    batch_size: int
    lr: float
    workers: int
    density: float
    target: float
    eval_every: float = 0.25


def harness() -> Path:
    """The program that makes hosts: in the current folder's checkout, or in that which psgd is run from.

    Raises:
        UsageError: there is none.
    """
    for root in (Path.cwd(), Path(psgd.__file__).resolve().parents[1]):
        file = root / "tests" / "support" / "harness" / "hosts.py"
        if file.is_file():
            return file
    raise UsageError("--bandwidth: expected tests/support/harness/hosts.py of the checkout, run it from there, as root")


def command(task: LinkTask, rate: str, form: str, seed: int) -> list[str]:
    """The command of one run; it prints its result as the last line of stdout."""
    flags = {
        **FORMS[form],
        "dataset": task.dataset,
        "model": task.model,
        "hidden": task.hidden,
        "epochs": task.epochs,
        "batch-size": task.batch_size,
        "lr": task.lr,
        "seed": seed,
        "eval-every": task.eval_every,
        "target-accuracy": task.target,
    }
    if "compress" in flags:
        flags["density"] = task.density
    hosts = [sys.executable, str(harness()), f"--hosts={task.workers}", f"--rate={rate}", "--ranks-per-host=1", "--"]
    return [*hosts, *processes.python("psgd.launch", "train", "--json", *(f"--{k}={v}" for k, v in flags.items()))]


def run(task: LinkTask, rates: Sequence[str], seed: int, tell: Callable[[Row], None]) -> list[Row]:
    """Trains in every form at every rate, one after the other. Blocks.

    Returns:
        A row for each run: the keys of `psgd train --json`, `bandwidth`, `updates` (the form), `seconds_to_accuracy`,
        and `sooner`, how many times sooner the target was reached than by the first form at that rate. A run that
        fails is reported on stderr and left out.
    """
    rows: list[Row] = []
    for rate in rates:
        first: float | None = None
        for form in FORMS:
            try:
                result = json.loads(processes.output(command(task, rate, form, seed), TIMEOUT_S).splitlines()[-1])
            except (RuntimeError, ValueError, IndexError) as error:
                why = " ".join(str(error).split())
                say(f"error: bench train: {form} at {rate} omitted: {why}")
                continue
            seconds = result["seconds_to_target"]
            first = seconds if form == next(iter(FORMS)) else first
            sooner = ratio(first, seconds) if first and seconds else None
            rows.append(result | {"bandwidth": rate, "updates": form, "seconds_to_accuracy": seconds, "sooner": sooner})
            tell(rows[-1])
    return rows


def cells(row: Row) -> tuple[str, ...]:
    """A row for people."""
    pushes = max(1, sum(row["workers_applied"]))
    seconds, sooner = row["seconds_to_accuracy"], row["sooner"]
    return (
        row["bandwidth"],
        row["updates"],
        f"{1e3 * row['seconds'] * row['workers'] / pushes:.1f}",
        f"{row['bytes_sent'] / pushes / 1e3:,.1f}",
        f"{row['test_accuracy']:.4f}",
        "-" if seconds is None else f"{seconds:.1f}",
        "-" if sooner is None else f"{sooner:.1f}",
    )


def line(parts: Sequence[str]) -> str:
    """Aligned columns."""
    return "  ".join(part.rjust(width) for part, width in zip(parts, (8, 20, 8, 9, 8, 11, 6), strict=True))
