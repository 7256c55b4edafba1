"""The runs behind `psgd bench train`: each in processes of its own, all of a seed in turn before the next seed."""

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from psgd.kernels.notice import say
from psgd.launch.bench.peers import processes
from psgd.launch.bench.peers.torch_options import TorchOptions
from psgd.launch.bench.stats import fmean, half_width, median, ratio
from psgd.launch.bench.train import settings

START_S, EPOCH_S = 120.0, 60.0
Runs = dict[str, list[dict[str, Any]]]
Teller = Callable[[str, int, dict[str, Any]], None]


def command(options: TorchOptions, log: Path) -> list[str]:
    """The command that makes one run and prints its result as the last line of stdout.

    Args:
        options: the run.
        log: where a strategy writes its evaluations, if it makes any.
    """
    if options.name in settings.PEERS:
        return processes.python("psgd.launch.bench.peers.torch_train", options.to_json())
    alone = options.name == "single"
    flags: dict[str, object] = {
        "strategy": "sync" if alone else options.name,
        "workers": options.workers,
        "dataset": options.dataset,
        "model": options.model,
        "epochs": options.epochs,
        "batch-size": options.batch_size,
        "lr": options.lr,
        "seed": options.seed,
        "inject": options.inject,
        "eval-every": int(options.evaluates),
    }
    if alone:
        flags["servers"] = 0
    if options.device != "cpu":
        flags["device"] = options.device
    if options.evaluates:
        flags["log"] = log
    flags |= settings.setting(options.name, options.workers)
    return processes.python("psgd.launch", "train", "--json", *settings.words(flags))


def run(names: Sequence[str], options: TorchOptions, seeds: int, tell: Teller | None = None) -> Runs:
    """Runs every strategy and peer once for each seed, all of a seed before the next seed. Blocks.

    One that fails or takes too long is reported on stderr in one line and left out of the result.

    Args:
        names: in the order of the runs.
        options: of all runs; name, seed and what follows from the name are filled in here.
        seeds: how many.
        tell: called after each run.
    """
    runs: Runs = {name: [] for name in names}
    for seed in range(seeds):
        for name in list(runs):
            try:
                result = _once(fitted(options, name, seed))
            except (RuntimeError, ValueError, IndexError) as error:
                why = " ".join(str(error).split())
                say(f"error: bench train: {name} omitted: {why}")
                del runs[name]
                continue
            runs[name].append(result)
            if tell is not None:
                tell(name, seed, result)
    return runs


def fitted(options: TorchOptions, name: str, seed: int) -> TorchOptions:
    """The options of one run."""
    return replace(
        options,
        name=name,
        seed=seed,
        workers=1 if name in settings.ALONE else options.workers,
        lr=settings.rate(name, options.lr, options.workers),
        inject=settings.injected(name, options.inject),
    )


def _once(options: TorchOptions) -> dict[str, Any]:
    """One run: its result, and `evaluations`, [seconds, accuracy] of each, the last at the end of the loop."""
    with tempfile.TemporaryDirectory(prefix="psgd-bench-") as folder:
        log = Path(folder, "log.jsonl")
        text = processes.output(command(options, log), START_S + EPOCH_S * options.epochs)
        result: dict[str, Any] = {**_common(options), **json.loads(text.strip().splitlines()[-1])}
        if log.exists():
            tests = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "eval"]
            # The last evaluation comes after the clock has stopped, as PyTorch's does.
            result["evaluations"] = [[min(line["time"], result["seconds"]), line["accuracy"]] for line in tests]
    return result


def reached(result: Mapping[str, Any], target: float) -> float:
    """Seconds from the start of a run to the end of its first evaluation of at least `target`; infinite if none is."""
    return min((seconds for seconds, right in result["evaluations"] if right >= target), default=math.inf)


def summarize(
    runs: Mapping[str, Sequence[dict[str, Any]]], options: TorchOptions, target: float = 0.0
) -> list[dict[str, Any]]:
    """One row for each strategy and peer: the keys of `psgd train --json`, and what the seeds tell together.

    samples_per_second, seconds, waited_share and seconds_to_accuracy are medians over the seeds, test_accuracy is
    the mean and test_accuracy_interval half its 95 % confidence interval. `ratio` is samples_per_second over that
    of `against`, the peer.
    """
    speed = {name: median(_each(results, "samples_per_second")) for name, results in runs.items()}
    rows = []
    for name, results in runs.items():
        accuracies = _each(results, "test_accuracy")
        peer = settings.AGAINST.get(name, "")
        times = [reached(result, target) for result in results] if target else []
        ours = name in settings.AGAINST
        row = {
            **results[-1],
            "name": name,
            "options": " ".join(settings.words(settings.setting(name, options.workers))) if ours else "",
            "inject": settings.injected(name, options.inject),
            "seeds": len(results),
            "seconds": median(_each(results, "seconds")),
            "samples_per_second": speed[name],
            "samples_per_second_runs": _each(results, "samples_per_second"),
            "test_accuracy": fmean(accuracies),
            "test_accuracy_interval": half_width(accuracies),
            "test_accuracy_runs": accuracies,
            "waited_share": median(map(_waited, results)) if ours else None,
            "against": peer if peer in runs else None,
            "ratio": ratio(speed[name], speed.get(peer)),
            "seconds_to_accuracy": _finite(median(times)) if times else None,
            "seconds_to_accuracy_runs": [_finite(seconds) for seconds in times],
        }
        row.pop("evaluations", None)
        rows.append(row)
    return rows


def _each(results: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [float(result[key]) for result in results]


def _waited(result: Mapping[str, Any]) -> float:
    """The share of the run that its workers, on the mean, spent in push + pull."""
    return fmean(result["waited_seconds"]) / float(result["seconds"])


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _common(options: TorchOptions) -> dict[str, Any]:
    """The keys of `psgd train --json` before a run fills in what it knows."""
    return {
        "dataset": options.dataset,
        "model": options.model,
        "strategy": options.name,
        "workers": options.workers,
        "servers": 0,
        "device": options.device,
        "mpi": None,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "lr": options.lr,
        "seed": options.seed,
        "train_loss": None,
        "bytes_sent": None,
        "bytes_received": None,
        "staleness": None,
        "waited_seconds": None,
        "lost_ranks": [],
        "checkpoint": None,
    }
