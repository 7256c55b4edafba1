"""The runs behind `psgd bench train`: each in processes of its own, the modes in turn for each seed."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psgd.launch.bench import processes
from psgd.launch.bench.stats import fmean, half_width, median, ratio
from psgd.launch.bench.torch_options import Options

START_S, EPOCH_S = 120.0, 60.0
STRATEGIES = {"single": "sync", "sync": "sync", "async": "async"}
Runs = dict[str, list[dict[str, Any]]]
Teller = Callable[[str, int, dict[str, Any]], None]


def command(options: Options) -> list[str]:
    """The command that runs one mode once and prints its result as the last line of stdout."""
    if options.mode not in STRATEGIES:
        return processes.python("psgd.launch.bench.torch_train", options.to_json())
    alone = options.mode == "single"
    flags = {
        "strategy": STRATEGIES[options.mode],
        "workers": 1 if alone else options.workers,
        "servers": 0 if alone else 1,
        "dataset": options.dataset,
        "model": options.model,
        "epochs": options.epochs,
        "batch-size": options.batch_size,
        "lr": options.lr,
        "seed": options.seed,
        "eval-every": 0,
    }
    return processes.python("psgd.launch", "train", "--json", *(f"--{name}={flags[name]}" for name in flags))


def run(modes: Sequence[str], options: Options, seeds: int, tell: Teller | None = None) -> Runs:
    """Runs every mode once for each seed, all modes of a seed before the next seed. Blocks.

    A mode that fails or takes too long is reported on stderr in one line and left out of the result.

    Args:
        modes: names, in the order of the runs.
        options: of all runs but for mode, seed and, in modes of one process, workers.
        seeds: how many.
        tell: called after each run.
    """
    runs: Runs = {mode: [] for mode in modes}
    for seed in range(seeds):
        for mode in list(runs):
            workers = 1 if mode in ("single", "torch") else options.workers
            one = replace(options, mode=mode, seed=seed, workers=workers)
            try:
                text = processes.output(command(one), START_S + EPOCH_S * options.epochs)
                result = {**_common(one), **json.loads(text.strip().splitlines()[-1])}
            except (RuntimeError, ValueError, IndexError) as error:
                print(f"psgd: error: bench train: {mode} left out: {error}", file=sys.stderr, flush=True)
                del runs[mode]
                continue
            runs[mode].append(result)
            if tell is not None:
                tell(mode, seed, result)
    return runs


def summarize(runs: Mapping[str, Sequence[dict[str, Any]]], peers: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row for each mode: the keys of `psgd train --json`, and what the seeds tell together.

    samples_per_second and seconds are medians over the seeds, test_accuracy is the mean and
    test_accuracy_interval half its 95 % confidence interval. `ratio` is samples_per_second over that of
    `against`, the peer.
    """
    speed = {mode: median(_each(results, "samples_per_second")) for mode, results in runs.items()}
    rows = []
    for mode, results in runs.items():
        accuracies = _each(results, "test_accuracy")
        against = peers.get(mode) if peers.get(mode) in runs else None
        rows.append(
            {
                **results[-1],
                "mode": mode,
                "seeds": len(results),
                "seconds": median(_each(results, "seconds")),
                "samples_per_second": speed[mode],
                "samples_per_second_runs": _each(results, "samples_per_second"),
                "test_accuracy": fmean(accuracies),
                "test_accuracy_interval": half_width(accuracies),
                "test_accuracy_runs": accuracies,
                "against": against,
                "ratio": ratio(speed[mode], speed[against]) if against else None,
                "seconds_to_accuracy": None,
            }
        )
    return rows


def _each(results: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [float(result[key]) for result in results]


def _common(options: Options) -> dict[str, Any]:
    """The keys of `psgd train --json` before a run fills in what it knows."""
    return {
        "strategy": options.mode,
        "workers": options.workers,
        "servers": 0,
        "device": "cpu",
        "mpi": None,
        "epochs": options.epochs,
        "train_loss": None,
        "bytes_sent": None,
        "bytes_received": None,
        "staleness": None,
        "lost_ranks": [],
        "checkpoint": None,
    }
