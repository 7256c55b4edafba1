"""A convolutional network on Fashion-MNIST under each strategy: a table, and a picture of loss against time.

    python examples/strategies_on_fashion.py --plot strategies.png      # 12,000 of the 60,000 images

Each row is a run of `psgd train` with 2 workers, and a server where the strategy has one; the dataset is the function
`images` below. Where one step combines all workers' gradients, the learning rate is twice as high. On two cores that
had other work too, the command printed (to compare speeds, use idle ones):

    strategy       seconds  samples/s    loss  accuracy
    sync              28.2        851   0.432     0.837
    async             24.0        999   0.389     0.860
    softsync          27.1        886   0.436     0.848
    ssp               15.8      1,522   0.411     0.847
    allreduce         26.2        917   0.432     0.837
    averaging         21.9      1,094   0.429     0.851
    easgd             17.3      1,383   0.459     0.838
    hogwild           22.0      1,090   0.405     0.856
    decentralized     21.8      1,100   0.402     0.860
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from psgd.data import Dataset, load

STRATEGIES: dict[str, list[str]] = {
    "sync": ["--scale-lr"],
    "async": [],
    "softsync": ["--softsync", "2", "--scale-lr"],
    "ssp": ["--staleness", "4", "--scale-lr"],
    "allreduce": ["--scale-lr"],
    "averaging": ["--period", "4"],
    "easgd": ["--period", "4"],
    "hogwild": [],
    "decentralized": [],
}
"""With their own options, and with the learning rate scaled where one step combines the gradients of all workers."""
IMAGES = "STRATEGIES_ON_FASHION"
"""In the environment of a run: the dataset, and how many of its images."""
Curve = list[tuple[float, float, float]]


def images() -> Any:
    """The first images, as many as main() has asked for; a sixth as many to test on."""
    name, count = os.environ[IMAGES].split()
    whole: Dataset = load(name)
    train, test = slice(int(count)), slice(-(-int(count) // 6))
    return (whole.train.x[train], whole.train.y[train]), (whole.test.x[test], whole.test.y[test])


def run(strategy: str, options: argparse.Namespace, log: Path) -> tuple[dict[str, Any], Curve]:
    """One run: its result, and its evaluations as (seconds, test loss, accuracy)."""
    flags = ["--model", "cnn", "--hidden", "64", "--lr", "0.05", "--batch-size", "32", "--optimizer", "sgd"]
    flags += ["--epochs", str(options.epochs), "--eval-every", "0.25", "--strategy", strategy, *STRATEGIES[strategy]]
    command = [sys.executable, "-m", "psgd.launch", "train", "--json", "--dataset", f"{__file__}:images", *flags]
    environment = os.environ | {IMAGES: f"{options.dataset} {options.samples}"}
    done = subprocess.run([*command, "--log", log], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    curve = [(line["time"], line["loss"], line["accuracy"]) for line in lines if line["event"] == "eval"]
    return json.loads(done.stdout.splitlines()[-1]), curve


def draw(curves: dict[str, Curve], path: str) -> None:
    """Test loss and accuracy against time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for column, (panel, what) in enumerate(zip(panels, ("loss", "accuracy"), strict=True), 1):
        for number, curve in enumerate(curves.values()):
            seconds, values = [point[0] for point in curve], [point[column] for point in curve]
            panel.plot(seconds, values, f"-{'o^sDv'[number % 5]}", markersize=4, color=f"C{number}")
        panel.set(xlabel="seconds", ylabel=f"{what} on the test images", xlim=(0, None))
        panel.grid(alpha=0.3)
    figure.legend(panels[0].get_lines(), list(curves), loc="outside right center")
    pyplot.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategy", action="append", choices=list(STRATEGIES), help="only this one; repeatable")
    parser.add_argument("--dataset", default="fashion-mnist", help="or digits, which come with psgd")
    parser.add_argument("--samples", type=int, default=12_000, help="images to train on (12000)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--plot", metavar="FILE", help="also write a picture: .png, .pdf or .svg (needs matplotlib)")
    options = parser.parse_args()
    print(f"{'strategy':<14}{'seconds':>8}{'samples/s':>11}{'loss':>8}{'accuracy':>10}", flush=True)
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        for strategy in options.strategy or STRATEGIES:
            result, curves[strategy] = run(strategy, options, Path(folder, f"{strategy}.jsonl"))
            rate, loss, accuracy = (result[name] for name in ("samples_per_second", "test_loss", "test_accuracy"))
            print(f"{strategy:<14}{result['seconds']:8.1f}{rate:11,.0f}{loss:8.3f}{accuracy:10.3f}", flush=True)
    if options.plot:
        draw(curves, options.plot)


if __name__ == "__main__":
    main()
