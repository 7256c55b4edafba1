"""What each rank of `psgd bench pipeline` does: verify a pipeline, then time it and the whole model in turn."""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from psgd.kernels.array import Array
from psgd.kernels.errors import Error
from psgd.launch.bench.peers import cores
from psgd.launch.bench.pipeline.full_pipeline import Continuous, StepsAlone, timed
from psgd.launch.bench.stats import median
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.rehearsal import DOUBLE, rehearse

SEED, TOLERANCE = 1, 1e-5
INFERENCE = "inference"
_FEATURES = _CLASSES = 10
"""A first and a last layer that are little beside the others, so that all stages have equal work."""
_WARM = 3  # calls: the first ones compile, and on GPUs record
_EVALUATED = 4  # batches of an evaluation: forward passes go on without a flush


class Sizes(NamedTuple):
    """Of the model and its batches."""

    layers: int
    width: int
    batch: int
    microbatches: int


def measure(
    comm: MPI.Intracomm, names: Sequence[str], sizes: Sizes, repeats: int, device: str = "cpu"
) -> Iterator[dict[str, Any]]:
    """Verifies and times each schedule. Collective, so all ranks must take every row.

    Args:
        comm: all ranks.
        names: schedules; "inference" times outputs alone.
        sizes: of the model and its batches.
        repeats: timed steps.
        device: "cpu", or "cuda": the ranks have the node's GPUs in turn.

    Yields:
        Rows, the same on all ranks; on GPUs the bubble is None, as nobody times their passes.

    Raises:
        Error: a loss that is not the whole model's; on all ranks.
    """
    xp = _module(comm, device)
    rng = np.random.default_rng(SEED)
    many = _EVALUATED * sizes.batch
    all_x = xp.asarray(rng.standard_normal((many, _FEATURES)).astype(np.float32))
    all_y = xp.asarray(rng.integers(0, _CLASSES, many))
    model = Model([Linear(sizes.width, relu=True)] * (1 + sizes.layers) + [Linear(_CLASSES)], (_FEATURES,))
    settle = (lambda: None) if xp is np else xp.cuda.get_current_stream().synchronize
    reference, steps = _reference(comm, model, xp, sizes.batch, device)
    for name in names:
        facts = {"schedule": name, "ranks": comm.size, "device": device, **sizes._asdict()}
        if not catalog.SCHEDULES[name].flushes:
            x, y = all_x[: sizes.batch], all_y[: sizes.batch]
            one_step = partial(_step, settle, steps, x, y)
            row = _without_flushes(comm, name, model, one_step, x, y, sizes, repeats, device)
            yield facts | {"expected_bubble": 0.0} | row
            continue
        trains = name != INFERENCE
        chunks = 2 if catalog.SCHEDULES[name].chunks else 1
        each = sizes.layers // (comm.size * chunks)
        x, y = (all_x[: sizes.batch], all_y[: sizes.batch]) if trains else (all_x, all_y)
        with Pipeline(
            comm,
            model,
            tuple(range(1 + each, 1 + sizes.layers, each)),
            name if trains else "1f1b",
            batch=sizes.batch,
            microbatches=sizes.microbatches,
            device=device,
        ) as pipeline:
            own = xp.asarray(pipeline.init(SEED))
            pipeline.bind(own, xp.zeros_like(own))
            together = partial(_loss, settle, pipeline, trains, len(x), x, y)
            alone = partial(_loss, settle, reference, trains, len(x), x, y)
            _verify(comm, name, alone, together)
            row = _timed(comm, alone, together, pipeline, repeats)
            microbatches = -(-len(x) // pipeline.microbatch)
        cells = rehearse(catalog.make(name, comm.size, microbatches, chunks), DOUBLE)
        busy, whole = sum(cell.stop - cell.start for cell in cells), max(cell.stop for cell in cells)
        expected = {"expected_bubble": 1 - busy / (comm.size * whole)}
        yield facts | expected | row | ({} if device == "cpu" else {"bubble": None})


def _without_flushes(
    comm: MPI.Intracomm,
    name: str,
    model: Model,
    alone: Callable[[], float],
    x: Array,
    y: Array,
    sizes: Sizes,
    repeats: int,
    device: str,
) -> dict[str, Any]:
    """The row of a schedule whose stages take steps. Collective."""
    two = catalog.SCHEDULES[name].least_every(comm.size) > 1
    cuts = tuple(range(1 + sizes.layers // comm.size, 1 + sizes.layers, sizes.layers // comm.size))
    how: dict[str, Any] = {"microbatches": sizes.microbatches if two else 1, "two_versions": two}
    together = Continuous(comm, model, cuts, SEED, x, y, **how, device=device)
    try:
        _verify(comm, name, alone, together.run)
        return timed(comm, alone, together, repeats)
    finally:
        together.close()


def _module(comm: MPI.Intracomm, device: str) -> Any:
    """Gives each rank its core, or its GPU; returns where arrays are made."""
    if device == "cpu":
        cores.pin(comm)
        return np
    from psgd.collectives.device.pick_gpu import choose_device

    choose_device(comm)
    cores.unpin()
    return importlib.import_module("cupy")


class _Whole:
    """The whole model on the host, called as a pipeline is."""

    def __init__(self, model: Model, batch: int) -> None:
        params = model.init(SEED)
        grads = np.zeros_like(params)
        model.bind(params, grads)
        self._model, self._context = model, model.context(batch)
        self.steps = StepsAlone(lambda x, y: self.gradient(len(x), x, y), params, grads)

    def gradient(self, n: int, x: Any, y: Any) -> float:
        return self._model.gradient(self._context, x, y)

    def evaluate(self, n: int, x: Any, y: Any) -> tuple[float, float]:
        return self._model.evaluate(self._context, x, y)


def _reference(comm: MPI.Intracomm, model: Model, xp: Any, batch: int, device: str) -> tuple[Any, StepsAlone | None]:
    """What rank 0 computes alone, and its steps: on a GPU by graphs too, so as a pipeline of one stage and microbatch.

    Other ranks get None.
    """
    if comm.rank:
        return None, None
    if device == "cpu":
        whole = _Whole(model, batch)
        return whole, whole.steps
    params = xp.asarray(model.init(SEED))
    grads = xp.zeros_like(params)
    alone = Pipeline(MPI.COMM_SELF, model, (), batch=batch, device=device)
    alone.bind(params, grads)
    return alone, StepsAlone(lambda x, y: alone.gradient(len(x), x, y), params, grads)


def _step(settle: Callable[[], None], steps: StepsAlone | None, x: Array, y: Array) -> float:
    """Takes a step alone, on rank 0; returns the loss once this rank's GPU is done."""
    if steps is None:
        return 0.0
    found = steps.step(x, y)
    settle()
    return found


def _loss(settle: Callable[[], None], of: Any, trains: bool, *arguments: Any) -> float:
    """Of a model or a pipeline: the mean with its gradient, or the sum alone; once this rank's GPU is done."""
    found = float(of.gradient(*arguments) if trains else of.evaluate(*arguments)[1])
    settle()
    return found


def _verify(comm: MPI.Intracomm, name: str, alone: Callable[[], float], together: Callable[[], float]) -> None:
    """Compares the losses; the first calls, too, which compile."""
    for _ in range(_WARM):
        found = together()
    wrong = np.zeros(1)
    cores.quiet_barrier(comm)
    if comm.rank == 0:
        for _ in range(_WARM):
            expected = alone()
        wrong[0] = abs(found - expected) / abs(expected)
    cores.quiet_barrier(comm)
    comm.Bcast(wrong)
    if not wrong[0] < TOLERANCE:
        raise Error(f"bench pipeline: {name}: the loss is {wrong[0]:.1e} from the whole's, expected below {TOLERANCE}")


def _timed(
    comm: MPI.Intracomm,
    alone: Callable[[], float],
    together: Callable[[], float],
    pipeline: Pipeline,
    repeats: int,
) -> dict[str, float]:
    """Medians over all steps; the two take turns step by step, and the other ranks sleep while one works."""
    one, every, busy = np.zeros(repeats), np.zeros(repeats), np.zeros(repeats)
    for turn in range(repeats):
        cores.quiet_barrier(comm)
        began = time.perf_counter()
        if comm.rank == 0:
            alone()
            one[turn] = time.perf_counter() - began
        cores.quiet_barrier(comm)
        comm.Barrier()
        pipeline.counters.clear()
        began = time.perf_counter()
        together()
        comm.Barrier()  # a rank that is done early idles until the others are
        every[turn] = time.perf_counter() - began
        busy[turn] = (pipeline.counters.compute_s + pipeline.counters.evaluation_s) / every[turn]
    comm.Bcast(one)
    comm.Bcast(every)
    comm.Allreduce(MPI.IN_PLACE, busy)
    bubble = 1 - median(busy.tolist()) / comm.size
    return {"one_seconds": median(one.tolist()), "pipeline_seconds": median(every.tolist()), "bubble": bubble}
