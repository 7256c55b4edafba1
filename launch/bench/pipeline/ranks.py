"""What each rank of `psgd bench pipeline` does: verify a pipeline, then time it and the whole model in turn."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from psgd.kernels.array import Array
from psgd.kernels.errors import Error
from psgd.launch.bench.peers import cores
from psgd.launch.bench.pipeline.full_pipeline import WholeSteps, Continuous, timed
from psgd.launch.bench.stats import median
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.rehearsal import DOUBLE, rehearse

SEED, TOLERANCE = 1, 1e-5
INFERENCE = "inference"
_FEATURES = _CLASSES = 10
"""A first and a last layer that are little beside the others, so that all stages have equal work."""
_EVALUATED = 4  # batches of an evaluation: forward passes go on without a flush


class Sizes(NamedTuple):
    """Of the model and its batches."""

    layers: int
    width: int
    batch: int
    microbatches: int


def measure(comm: MPI.Intracomm, names: Sequence[str], sizes: Sizes, repeats: int) -> Iterator[dict[str, Any]]:
    """Verifies and times each schedule. Collective, so all ranks must take every row.

    Args:
        comm: all ranks.
        names: schedules; "inference" times outputs alone.
        sizes: of the model and its batches.
        repeats: timed steps.

    Yields:
        Rows, the same on all ranks.

    Raises:
        Error: a loss that is not the whole model's; on all ranks.
    """
    cores.pin(comm)
    rng = np.random.default_rng(SEED)
    many = _EVALUATED * sizes.batch
    all_x = rng.standard_normal((many, _FEATURES)).astype(np.float32)
    all_y = rng.integers(0, _CLASSES, many)
    model = Model([Linear(sizes.width, relu=True)] * (1 + sizes.layers) + [Linear(_CLASSES)], (_FEATURES,))
    context, one_rank = None, None
    if comm.rank == 0:
        params = model.init(SEED)
        grads = np.zeros_like(params)
        model.bind(params, grads)
        context = model.context(sizes.batch)
        one_rank = WholeSteps(model, context, params, grads)
    for name in names:
        if not catalog.SCHEDULES[name].flushes:
            x, y = all_x[: sizes.batch], all_y[: sizes.batch]
            cuts = tuple(range(1 + sizes.layers // comm.size, 1 + sizes.layers, sizes.layers // comm.size))
            two = catalog.SCHEDULES[name].least_every(comm.size) > 1
            row = _without_flushes(comm, name, model, cuts, one_rank, x, y, sizes.microbatches if two else 1, repeats)
            yield {"schedule": name, "ranks": comm.size, **sizes._asdict(), "expected_bubble": 0.0} | row
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
        ) as pipeline:
            own = pipeline.init(SEED)
            pipeline.bind(own, np.zeros_like(own))

            together = partial(_loss, pipeline, trains, len(x), x, y)
            alone = partial(_loss, model, trains, context, x, y)
            _verify(comm, name, alone, together)
            row = _timed(comm, alone, together, pipeline, repeats)
            microbatches = -(-len(x) // pipeline.microbatch)
        cells = rehearse(catalog.make(name, comm.size, microbatches, chunks), DOUBLE)
        busy, whole = sum(cell.stop - cell.start for cell in cells), max(cell.stop for cell in cells)
        expected = 1 - busy / (comm.size * whole)
        yield {"schedule": name, "ranks": comm.size, **sizes._asdict(), "expected_bubble": expected} | row


def _without_flushes(
    comm: MPI.Intracomm,
    name: str,
    model: Model,
    cuts: Cuts,
    one_rank: WholeSteps | None,
    x: Array,
    y: Array,
    microbatches: int,
    repeats: int,
) -> dict[str, Any]:
    """The row of a schedule whose stages take steps. Collective."""
    two = catalog.SCHEDULES[name].least_every(comm.size) > 1
    together = Continuous(comm, model, cuts, SEED, x, y, microbatches=microbatches, two_versions=two)

    def alone() -> float:
        return 0.0 if one_rank is None else one_rank.step(x, y)

    try:
        _verify(comm, name, alone, together.run)
        return timed(comm, alone, together, repeats)
    finally:
        together.close()


def _loss(of: Any, trains: bool, *arguments: Any) -> float:
    """Of a model or a pipeline: the mean with its gradient, or the sum alone."""
    return float(of.gradient(*arguments) if trains else of.evaluate(*arguments)[1])


def _verify(comm: MPI.Intracomm, name: str, alone: Callable[[], float], together: Callable[[], float]) -> None:
    """Compares the losses; the first calls, too, which compile."""
    found = together()
    wrong = np.zeros(1)
    cores.quiet_barrier(comm)
    if comm.rank == 0:
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
