"""What each rank of `psgd bench gpt` does: compare losses, then time the contenders in turn."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

import psgd
from psgd.data import Dataset, load
from psgd.data.sampler import order
from psgd.kernels.errors import AgreedUsageError, Error, UsageError
from psgd.launch.bench.peers import torch_gpt
from psgd.launch.bench.stats import median
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.optim import rules

LR, SEED = 1e-3, 0
WARM = 3
Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Trial:
    """What is trained and how long; the options of the command."""

    layers: int
    width: int
    heads: int
    context: int
    dataset: str
    batch_size: int
    steps: int
    repeats: int


def measure(comm: MPI.Intracomm, task: Trial, near: float) -> dict[str, Any]:
    """Compares the losses, then times. Collective, blocks.

    Args:
        comm: all ranks, each of which computes with one thread.
        task: the same on all.
        near: most that losses may differ by.

    Returns:
        The task, with `difference` of losses and samples a second of one core: of PyTorch and of psgd on each rank by
        itself, and of psgd by all-reduce; the slowest rank's medians, the same on all ranks.

    Raises:
        AgreedUsageError: a task that cannot be; on all ranks.
        Error: losses that differ by more; on all ranks.
    """
    torch.set_num_threads(1)
    try:
        data = load(task.dataset, task.context)
        sizes = {name: getattr(task, name) for name in ("layers", "width", "heads")}
        together, alone = (build("gpt", data.sample_shape, data.classes, tokens=data.tokens, **sizes) for _ in range(2))
    except UsageError as error:
        raise AgreedUsageError(str(error)) from None
    params = together.init(SEED)
    theirs = _theirs(alone, params, task, data.classes)
    own = _Alone(alone, params.copy(), task.batch_size)
    with psgd.connect(comm, params, strategy="allreduce", rule="adam", lr=LR) as ps:
        ours = _Together(together, ps, task.batch_size)
        rows = order(data.train.samples, SEED, 0)
        difference = _compare(comm, task, data, rows, theirs, ours, near)
        mine = _batch(data, rows, comm.rank * task.batch_size, task.batch_size)
        steps = {
            "torch": lambda: theirs(*(torch.from_numpy(a.astype(np.int64)) for a in mine)),
            "psgd": lambda: own(*mine),
            "psgd_all": lambda: ours(*mine),
        }
        seconds = _timed(comm, steps, task.repeats)
    speeds = {f"{name}_samples_per_second": task.batch_size / each for name, each in seconds.items()}
    return {**asdict(task), "ranks": comm.size, "difference": difference, **speeds}


def _theirs(model: Model, params: NDArray[np.float32], task: Trial, vocabulary: int) -> torch_gpt.Steps:
    """PyTorch's model with the same weights."""
    module = torch_gpt.GPT(vocabulary, task.context, task.layers, task.width, task.heads)
    tied = dict(model.layout.tied)
    weights = {name: each for name, each in model.layout.for_torch(params).items() if name not in tied}
    torch_gpt.take(module, weights)
    return torch_gpt.Steps(module, LR)


class _Alone:
    """Psgd's steps on one rank by itself."""

    def __init__(self, model: Model, params: NDArray[np.float32], batch_size: int) -> None:
        self._model, self._params, self._grads = model, params, np.zeros_like(params)
        self._rule = rules.create("adam")
        self._state = self._rule.init(params)
        self._count = 0
        model.bind(params, self._grads)
        self._context = model.context(batch_size)

    def __call__(self, x: NDArray[np.uint8], y: NDArray[np.int64]) -> float:
        loss: float = self._model.gradient(self._context, x.astype(np.float32), y)
        self._count += 1
        self._rule.update(self._params, self._grads, self._state, LR, 1.0, self._count)
        return loss


class _Together:
    """Psgd's steps by all-reduce."""

    def __init__(self, model: Model, ps: Any, batch_size: int) -> None:
        self._model, self._ps = model, ps
        model.bind(ps.params, ps.grads)
        self._context = model.context(batch_size)

    def __call__(self, x: NDArray[np.uint8], y: NDArray[np.int64]) -> float:
        ready = self._ps.overlap(len(x))
        loss: float = self._model.gradient(self._context, x.astype(np.float32), y, ready)
        self._ps.step(len(x), loss)
        return loss


def _batch(data: Dataset, rows: NDArray[np.int64], start: int, count: int) -> Batch:
    """Samples by their place in the order, which begins again where it ends."""
    chosen = rows.take(range(start, start + count), mode="wrap")
    return data.train.x[chosen], data.train.y[chosen].astype(np.int64)


def _compare(
    comm: MPI.Intracomm,
    task: Trial,
    data: Dataset,
    rows: NDArray[np.int64],
    theirs: torch_gpt.Steps,
    ours: _Together,
    near: float,
) -> float:
    """Returns the largest difference of losses."""
    most, at = 0.0, ""
    whole = comm.size * task.batch_size
    for step in range(task.steps):
        x, y = _batch(data, rows, step * whole, whole)
        part = slice(comm.rank * task.batch_size, (comm.rank + 1) * task.batch_size)
        own: float = comm.allreduce(ours(x[part], y[part])) / comm.size
        if comm.rank == 0:
            other = theirs(torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y))
            if math.isfinite(most) and not abs(own - other) <= most:
                most, at = abs(own - other), f"step {step + 1}: psgd's loss is {own:.6f}, PyTorch's {other:.6f}"
    most, at = comm.bcast((most, at), 0)
    if not most <= near:
        raise Error(f"bench gpt: losses differ by {most:.1e}, expected at most {near:.0e}; {at}")
    return float(most)


def _timed(comm: MPI.Intracomm, steps: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median step of the slowest rank, in seconds; contenders take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(WARM + repeats):
        for name, step in steps.items():
            comm.Barrier()
            start = time.perf_counter()
            step()
            if turn >= WARM:
                seconds[name].append(time.perf_counter() - start)
    return {name: comm.allreduce(median(each), MPI.MAX) for name, each in seconds.items()}
