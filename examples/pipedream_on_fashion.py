"""Is a pipeline without flushes as good as one with them? A network in stages on Fashion-MNIST, in three ways.

    mpirun -n 4 python examples/pipedream_on_fashion.py

Each rank has one stage of the same MLP, and all three ways take the same number of steps with the same batches:

- `1f1b` flushes: a step after each batch, of the gradient at the weights before it.
- `pipedream` does not: a stage takes its step as soon as it can, with a gradient at weights that are up to 3 steps old.
- `2bw` does not either, with batches in 4 microbatches: each gradient is 1 step old, on all stages.

The learning rate falls to 0 along half a cosine. The table has the accuracy on the test images, mean and standard
deviation over seeds; the difference to the first row, mean over the same seeds; and the bubble of the last epoch: all
of it, and without its fill and drain. With fewer cores than ranks, the bubble shows how the ranks wait for cores.
docs/schedules.md has the accuracies of 5 seeds.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.data import load
from psgd.data.sampler import order
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.reshape import Flatten
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.rules import create
from psgd.optim.schedules import cosine
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import grid
from psgd.parallel.schedules.rehearsal import Cell

WAYS = ("1f1b", "pipedream", "2bw")
MICROBATCHES = 4


class Data:
    """Images and labels as the network takes them."""

    def __init__(self, name: str, samples: int) -> None:
        whole = load(name)
        x = whole.train.x[:samples].astype(np.float32)
        self.mean, self.deviation = float(x.mean()), float(x.std())
        self.x, self.y = self._scaled(x), whole.train.y[:samples].astype(np.int64)
        self.test_x, self.test_y = self._scaled(whole.test.x), whole.test.y.astype(np.int64)

    def _scaled(self, x: Any) -> Any:
        return ((x.astype(np.float32) - self.mean) / self.deviation).astype(np.float32)

    def batches(self, seed: int, epoch: int, size: int) -> Callable[[int], tuple[Any, Any]]:
        """The batches of an epoch, the same on all ranks."""
        chosen = order(len(self.y), seed, epoch)

        def batch(step: int) -> tuple[Any, Any]:
            mine = chosen[step * size : (step + 1) * size]
            return self.x[mine], self.y[mine]

        return batch


def model(ranks: int, shape: tuple[int, ...]) -> tuple[Model, tuple[int, ...]]:
    """An MLP with a layer for each rank, and where it is cut."""
    hidden = [Linear(max(32, 256 >> index), relu=True) for index in range(ranks - 1)]
    return Model((Flatten(), *hidden, Linear(10)), shape), tuple(range(2, ranks + 1))


def run(comm: MPI.Intracomm, way: str, data: Data, options: argparse.Namespace, seed: int) -> tuple[float, list[Cell]]:
    """One run: accuracy, and what this rank did in the last epoch."""
    whole, cuts = model(comm.Get_size(), data.x.shape[1:])
    cells: list[Cell] = []
    rank = comm.Get_rank()
    if way == "1f1b":
        pipeline = Pipeline(comm, whole, cuts, batch=options.batch_size, microbatches=MICROBATCHES)
    else:
        two = way == "2bw"
        pipeline = PipeDream(
            comm, whole, cuts, batch=options.batch_size, microbatches=MICROBATCHES if two else 1, two_versions=two
        )
    with pipeline:
        rule = create(options.optimizer)
        optimizer = Optimizer(
            pipeline.init(seed), OptimizerOptions(rule, cosine(options.lr, options.epochs * len(data.y)))
        )
        grads = np.zeros_like(optimizer.params)
        for epoch in range(options.epochs):
            if epoch == options.epochs - 1:
                pipeline.executor.observer = lambda each, start, stop: cells.append(Cell(rank, each, start, stop))
            batch = data.batches(seed, epoch, options.batch_size)
            if isinstance(pipeline, PipeDream):
                pipeline.train(optimizer, len(data.y), batch)
                continue
            pipeline.bind(optimizer.params, grads)
            for step in range(-(-len(data.y) // options.batch_size)):
                x, y = batch(step)
                pipeline.gradient(len(y), x, y)
                optimizer.take(grads, 1.0, epoch * len(data.y) + step * options.batch_size)
        pipeline.bind(optimizer.params, grads)
        right, _ = pipeline.evaluate(len(data.test_y), data.test_x, data.test_y)
    return right / len(data.test_y), cells


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one; repeatable")
    parser.add_argument("--dataset", default="fashion-mnist", help="or digits, which come with psgd")
    parser.add_argument("--samples", type=int, default=60_000, help="images to train on (60000)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    data = Data(options.dataset, options.samples)
    found: dict[str, list[float]] = {}
    if comm.Get_rank() == 0:
        print(f"{'':<12}{'accuracy':>16}{'to first':>10}{'bubble':>10}{'steady':>10}", flush=True)
    for way in options.way or WAYS:
        found[way], bubbles = [], []
        for seed in range(options.seeds):
            accuracy, mine = run(comm, way, data, options, seed)
            found[way].append(100 * accuracy)
            every = comm.gather(mine)
            if every is not None:
                cells = [cell for cells in every for cell in cells]
                full = cells if way == "1f1b" else grid.steady(cells, len(every))
                bubbles.append([100 * grid.bubble(each, len(every)) for each in (cells, full)])
        if comm.Get_rank() == 0:
            mean, deviation = np.mean(found[way]), np.std(found[way], ddof=1) if options.seeds > 1 else 0.0
            difference = np.mean(np.subtract(found[way], found[next(iter(found))]))
            whole, steady = np.median(bubbles, 0)
            last = f"{'-':>10}" if way == "1f1b" else f"{steady:8.1f} %"
            print(f"{way:<12}{mean:8.2f} ± {deviation:5.2f}{difference:10.2f}{whole:8.1f} %{last}", flush=True)


if __name__ == "__main__":
    main()
