"""What each rank of `psgd bench parallel` does: verify a cut model, then time it and the whole in turn."""

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives import Communicator
from psgd.kernels.errors import Error
from psgd.launch.bench.peers import cores
from psgd.launch.bench.stats import median
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.tensor.plan import plan

SEED, TOLERANCE, GRADIENT_TOLERANCE = 1, 1e-4, 1e-2
"""In float32, of the gradient's norm: a unit whose ReLU is on one side of 0 by rounding alone adds a sample's share."""
EXACT, EXACT_SAMPLES = 1e-10, 64
"""In float64, where that does not happen, for so many samples: of losses and gradients."""
ONE, ALL, TORCH = "one", "tensor", "torch"
Step = Callable[[], float]


def measure(
    comm: MPI.Intracomm,
    hidden: Sequence[int],
    width: int,
    batch: int,
    repeats: int,
    device: str = "cpu",
    torch: bool = False,
) -> Iterator[dict[str, Any]]:
    """Verifies and times a model for each number of hidden units. Collective, so all ranks must take every row.

    Yields:
        Rows with medians of the slowest rank in seconds, the same on all ranks.

    Raises:
        Error: loss or gradients are not the whole model's; on all ranks.
    """
    xp: Any = np
    if device == "cuda":
        from psgd.collectives.device.pick_gpu import choose_device

        choose_device(comm)
        cores.unpin()
        xp = importlib.import_module("cupy")
    else:
        cores.pin(comm)
    rng = np.random.default_rng(SEED)
    x, y = rng.standard_normal((batch, width)).astype(np.float32), rng.integers(0, width, batch)
    there = xp.asarray(x), xp.asarray(y)
    with Communicator(comm) as tensor, _peer(comm, device, torch) as peer:
        for units in hidden:
            layers = [Linear(units, relu=True), Linear(width)]
            cut = plan(layers, (width,), tensor)
            _verify_exactly(comm, layers, cut, xp, *(each[:EXACT_SAMPLES] for each in there))
            whole, part = Model(layers, (width,)), Model(cut, (width,))
            steps: dict[str, Step] = {ONE: _Step(whole, xp, *there), ALL: _Step(part, xp, *there)}
            if peer is not None:
                steps[TORCH] = peer(whole.layout.for_torch(whole.init(SEED)), x, y)
            _verify(comm, whole, part, steps)
            name = f"{width}-{units}-{width}"
            yield {"model": name, "batch": batch, "ranks": comm.size, f"{TORCH}_seconds": None} | _timed(
                comm, steps, repeats
            )


@contextlib.contextmanager
def _peer(comm: MPI.Intracomm, device: str, wanted: bool) -> Iterator[Callable[..., Step] | None]:
    """What makes PyTorch's steps, until its process group ends."""
    if not wanted:
        yield None
        return
    from psgd.launch.bench.parallel import torch_tensor

    group = torch_tensor.TorchGroup(comm, device)
    try:
        yield functools.partial(torch_tensor.TorchStep, group)
    finally:
        group.close()


class _Step:
    """A gradient, by a model bound to vectors of its own."""

    def __init__(self, model: Model, xp: Any, x: Any, y: Any) -> None:
        self.params = xp.asarray(model.init(SEED))
        self.grads = xp.zeros_like(self.params)
        model.bind(self.params, self.grads)
        self._model, self._context, self._x, self._y = model, model.context(len(x)), x, y
        self._wait = (lambda: None) if xp is np else xp.cuda.get_current_stream().synchronize

    def __call__(self) -> float:
        loss = float(self._model.gradient(self._context, self._x, self._y))
        self._wait()
        return loss


def _verify_exactly(comm: MPI.Intracomm, layers: list[Any], cut: list[Any], xp: Any, x: Any, y: Any) -> None:
    """Compares the models in float64, on a few samples."""
    whole, part = (Model(each, x.shape[1:], np.float64) for each in (layers, cut))
    one, all_of_it = (_Step(model, xp, x.astype(np.float64), y) for model in (whole, part))
    _compare(comm, whole, part, one, all_of_it, [one(), all_of_it()], (EXACT, EXACT))


def _verify(comm: MPI.Intracomm, whole: Model, part: Model, steps: Mapping[str, Any]) -> None:
    """Compares this rank's parts with what the whole model has there."""
    losses = [steps[ONE](), steps[ALL]()]
    if TORCH in steps:
        losses.append(steps[TORCH]())
    _compare(comm, whole, part, steps[ONE], steps[ALL], losses, (TOLERANCE, GRADIENT_TOLERANCE))


def _compare(
    comm: MPI.Intracomm,
    whole: Model,
    part: Model,
    one: Any,
    ours: Any,
    losses: list[float],
    most: tuple[float, float],
) -> None:
    """Raises Error on all ranks where losses or gradients are further apart than `most`."""
    theirs, mine = whole.layout.views(one.grads), part.layout.views(ours.grads)
    apart = max(_apart(mine[p.name], theirs[p.name][p.slices]) for p in part.layout.parameters)
    worst = np.array([max(abs(loss - losses[0]) / losses[0] for loss in losses), apart])
    comm.Allreduce(MPI.IN_PLACE, worst, MPI.MAX)
    if not (worst[0] < most[0] and worst[1] < most[1]):
        raise Error(
            f"bench parallel: a cut model in {whole.dtype} is not the whole: losses are {worst[0]:.1e} apart, expected "
            f"below {most[0]:g}, gradients {worst[1]:.1e}, expected below {most[1]:g}"
        )


def _apart(ours: Any, theirs: Any) -> float:
    """The norm of their difference, relative."""
    return float(((ours - theirs) ** 2).sum() ** 0.5 / (theirs**2).sum() ** 0.5)


def _timed(comm: MPI.Intracomm, steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Medians over all steps; contenders take turns step by step, and all others sleep while one rank works."""
    seconds = {name: np.zeros(repeats) for name in steps}
    for turn in range(-1, repeats):  # the first is not counted
        for name, step in steps.items():
            cores.quiet_barrier(comm)
            if name != ONE:
                comm.Barrier()  # which ends on all ranks at once
            began = time.perf_counter()
            if name != ONE or comm.rank == 0:
                step()
                seconds[name][max(turn, 0)] = time.perf_counter() - began
    for mine in seconds.values():
        comm.Allreduce(MPI.IN_PLACE, mine, MPI.MAX)
    return {f"{name}_seconds": median(mine.tolist()) for name, mine in seconds.items()}
