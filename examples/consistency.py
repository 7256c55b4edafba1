"""The experiments of the papers on consistency, at a size for two cores: tables, and pictures with --plot.

    python examples/consistency.py softsync               # staleness against S (Zhang, Gupta, Lian, Liu 2015)
    python examples/consistency.py ssp --plot ssp.png     # waiting against the bound (Li et al. 2014)
    python examples/consistency.py straggler              # time to a target with one worker 4 times slower
    python examples/consistency.py scaled                 # a learning rate too high for stale ones, fixed and scaled

Each row is a run of `psgd train` on the digits. A gradient takes its time by sleeping, not by computing. So the figures
show the strategy, and not the scheduler of a machine with fewer cores than workers.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

Row = Sequence[float | str]


def train(**options: object) -> dict[str, Any]:
    """One run of `psgd train`; options are its flags."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "psgd.launch", "train", "--json", "--batch-size=16", *flags]
    print(" ".join(flags), file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def softsync() -> tuple[Row, list[Row]]:
    """With N workers and S pushes a step, mean staleness is (N - 1)/S; few pushes are staler than 2 N/S."""
    workers, rows = 8, []
    for size in (1, 2, 4, 8):
        result = train(
            strategy="softsync", softsync=size, workers=workers, epochs=8, eval_every=0, inject="compute:0.02"
        )
        histogram = {int(tau): count for tau, count in result["staleness"]["histogram"].items()}
        beyond = sum(count for tau, count in histogram.items() if tau > 2 * workers / size) / sum(histogram.values())
        rows.append((size, result["staleness"]["mean"], (workers - 1) / size, max(histogram), beyond))
    return ("S", "mean staleness", "(N-1)/S", "largest", "share above 2N/S"), rows


def ssp() -> tuple[Row, list[Row]]:
    """Workers stall in turn, at 5 % of their steps, for 10 times the usual time: a bound of a few steps hides that."""
    rows: list[Row] = []
    for bound in (0, 1, 2, 4, 8, 16, 32):
        stalls = "compute:0.01,slow:rotating:10:0.05"
        result = train(strategy="ssp", staleness=bound, workers=4, epochs=8, eval_every=0, inject=stalls)
        waited = sum(result["waited_seconds"]) / (4 * result["seconds"])
        rows.append((bound, result["seconds"], waited, result["staleness"]["max"], result["test_accuracy"]))
    return ("bound", "seconds", "share waited", "largest staleness", "accuracy"), rows


def straggler() -> tuple[Row, list[Row]]:
    """One of 4 workers is 4 times slower: sync and ssp run at its speed, async and softsync do not."""
    rows: list[Row] = []
    for strategy in ("sync", "ssp", "softsync", "async"):
        more = {"softsync": 2} if strategy == "softsync" else {}
        slow = "compute:0.01,slow:3:4"
        result = train(strategy=strategy, workers=4, epochs=20, target_accuracy=0.95, inject=slow, **more)
        rows.append((strategy, result["seconds_to_target"], result["samples_per_second"], result["staleness"]["mean"]))
    return ("strategy", "seconds to 95 %", "samples/s", "mean staleness"), rows


def scaled() -> tuple[Row, list[Row]]:
    """Here fixed steps diverge once gradients are stale; steps divided by the staleness train for every S."""
    workers, rows = 16, []
    for size in (1, 2, 4, 8, 16):
        options = {"strategy": "softsync", "softsync": size, "workers": workers, "lr": 0.5, "epochs": 10}
        results = [
            train(**options, eval_every=0, inject="compute:0.03", staleness_lr=scale) for scale in ("none", "inverse")
        ]
        rows.append((size, *(result["test_accuracy"] for result in results), results[0]["staleness"]["mean"]))
    return ("S", "accuracy, fixed steps", "accuracy, scaled", "mean staleness"), rows


def show(header: Row, rows: list[Row]) -> None:
    """Prints aligned columns."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def draw(header: Row, rows: list[Row], path: str) -> None:
    """Plots the second and third column against the first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [str(row[0]) for row in rows]
    _, panels = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for panel, column in zip(panels, (1, 2), strict=True):
        panel.plot(names, [row[column] for row in rows], "o-")
        panel.set(xlabel=header[0], ylabel=header[column], ylim=(0, None))
        panel.grid(alpha=0.3)
    pyplot.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    experiments = {"softsync": softsync, "ssp": ssp, "straggler": straggler, "scaled": scaled}
    parser.add_argument("experiment", choices=list(experiments))
    parser.add_argument("--plot", metavar="FILE", help="also write a plot: .png, .pdf or .svg (needs matplotlib)")
    options = parser.parse_args()
    header, rows = experiments[options.experiment]()
    show(header, rows)
    if options.plot:
        draw(header, rows, options.plot)


if __name__ == "__main__":
    main()
