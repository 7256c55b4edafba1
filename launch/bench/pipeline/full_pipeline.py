"""A pipeline that is never empty, timed: what of the ranks' time is passes, steps, waiting and the rest."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.kernels.array import Array, array_module
from psgd.launch.bench.peers import cores
from psgd.launch.bench.stats import median
from psgd.nn.model import Model
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.rules import create
from psgd.optim.schedules import Constant
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.schedules import grid
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.rehearsal import Cell

STEPS = 8
"""Of a timed run, beside those in which the pipeline fills and drains."""
_RATE = 1e-30  # steps cost what they do, and the loss stays as it is


class StepsAlone:
    """The same steps by the whole model on one rank.

    Args:
        gradient: writes that of samples and labels, and returns the loss.
        params: of the model.
        grads: what it writes to.
    """

    def __init__(self, gradient: Callable[[Array, Array], float], params: Array, grads: Array) -> None:
        self._gradient, self._grads = gradient, grads
        self._optimizer = _optimizer(params)

    def step(self, x: Array, y: Array) -> float:
        """Takes one; returns the loss. On a GPU the step is started then."""
        loss = self._gradient(x, y)
        self._optimizer.take(self._grads, 1.0, 0)
        return float(loss)


class Continuous:
    """The steps of a pipeline. Collective, as all its methods; close it.

    Args:
        comm: all ranks.
        model: as a description.
        cuts: of the stages.
        seed: of the parameters.
        x: samples of each batch.
        y: their labels.
        microbatches: of a step.
        two_versions: as of `PipeDream`.
        device: as of `PipeDream`, where x and y are.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: Model,
        cuts: Cuts,
        seed: int,
        x: Array,
        y: Array,
        *,
        microbatches: int,
        two_versions: bool,
        device: str = "cpu",
    ) -> None:
        self._comm, self._data, self._xp = comm, (x, y), array_module(x)
        how: dict[str, Any] = {"microbatches": microbatches, "two_versions": two_versions, "device": device}
        self._pipeline = PipeDream(comm, model, cuts, batch=len(x), **how)
        self._optimizer = _optimizer(self._xp.asarray(self._pipeline.init(seed)))
        self._cells: list[Cell] = []
        self._pipeline.executor.observer = self._seen

    def run(self) -> float:
        """Fills the pipeline, takes `STEPS` and drains it; returns the mean loss."""
        x, _ = self._data
        self._cells.clear()
        steps = STEPS + 2 * self._comm.size
        loss = self._pipeline.train(self._optimizer, steps * len(x), lambda step: self._data)
        if self._xp is not np:
            self._xp.cuda.get_current_stream().synchronize()
        return loss

    @property
    def timed(self) -> bool:
        """Whether the times of passes are known: not on GPUs, whose hosts only start them."""
        return not self._pipeline.on_gpu

    def shares(self) -> list[dict[str, float]]:
        """Of each rank's time in the last run, while the pipeline was full: passes, steps, and what is neither.

        Collective.
        """
        everyone = [cell for mine in self._comm.allgather(self._cells) for cell in mine]
        full = grid.steady(everyone, self._comm.size)
        whole = grid.span(full)
        found = []
        for rank in range(self._comm.size):
            mine = [cell for cell in full if cell.rank == rank]
            passes, steps = (
                sum(cell.stop - cell.start for cell in mine if (cell.instruction.kind == "U") == is_step) / whole
                for is_step in (False, True)
            )
            found.append({"passes": passes, "steps": steps, "idle": 1 - passes - steps})
        return found

    def step_seconds(self) -> float:
        """Of the last run, from one step of this rank to its next, in the middle of it.

        On a GPU, whose host starts a step when the GPU of the last stage has its loss.
        """
        ends = [cell.stop for cell in self._cells if cell.instruction.kind == "U"]
        middle = ends[self._comm.size : -self._comm.size]
        return (middle[-1] - middle[0]) / (len(middle) - 1)

    def close(self) -> None:
        """Frees the pipeline."""
        self._pipeline.close()

    def _seen(self, each: Instruction, start: float, stop: float) -> None:
        self._cells.append(Cell(self._comm.rank, each, start, stop))


def timed(comm: MPI.Intracomm, alone: Callable[[], float], together: Continuous, repeats: int) -> dict[str, Any]:
    """The two in turn: medians over the runs, the same on all ranks. Collective.

    Args:
        comm: all ranks.
        alone: a step on rank 0.
        together: the pipeline.
        repeats: timed runs.

    Returns:
        The figures of a row. On GPUs the bubble is None, and those that go with it are not there.
    """
    one, every, runs = np.zeros(repeats), np.zeros(repeats), list[list[dict[str, float]]]()
    for turn in range(repeats):
        cores.quiet_barrier(comm)
        began = time.perf_counter()
        if comm.rank == 0:
            alone()
            one[turn] = time.perf_counter() - began
        cores.quiet_barrier(comm)
        together.run()
        every[turn] = together.step_seconds()
        if together.timed:
            runs.append(together.shares())
    comm.Bcast(one)
    comm.Bcast(every)
    seconds = {"one_seconds": median(one.tolist()), "pipeline_seconds": median(every.tolist())}
    if not runs:
        return seconds | {"bubble": None}
    bubbles = [float(np.mean([rank["idle"] for rank in ranks])) for ranks in runs]
    middle = sorted(range(repeats), key=bubbles.__getitem__)[repeats // 2]
    return seconds | {"bubble": median(bubbles), "least_bubble": min(bubbles), "shares": runs[middle]}


def _optimizer(params: Array) -> Optimizer:
    return Optimizer(params, OptimizerOptions(create("sgd"), Constant(_RATE)))
