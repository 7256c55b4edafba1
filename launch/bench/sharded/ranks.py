"""What each rank of `psgd bench sharded` does: the same steps by all contenders in turn, then compare what came out."""

import contextlib
import importlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import psgd
from psgd.collectives import Communicator
from psgd.kernels.errors import Error
from psgd.launch.bench.peers import cores
from psgd.launch.bench.stats import median
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices

SEED, UNTIMED = 1, 2
VECTORS = (2, 2, 2, 3)
"""What travels in a step of each contender: so many times (N - 1)/N of all parameters."""


def measure(
    comm: MPI.Intracomm, layers: int, width: int, batch: int, repeats: int, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Times and verifies all contenders. Collective, blocks.

    Returns:
        A row for each stage, 0 is `allreduce`; medians of the slowest rank in seconds, means of bytes over the ranks.

    Raises:
        Error: parameters or bytes are not what they must be; on all ranks.
    """
    xp: Any = np
    if device == "cuda":
        from psgd.collectives.device.pick_gpu import choose_device

        choose_device(comm)
        cores.unpin()
        xp = importlib.import_module("cupy")
    else:
        cores.pin(comm)
    rng = np.random.default_rng([SEED, comm.rank])
    x = xp.asarray(rng.standard_normal((batch, width)).astype(np.float32))
    y = xp.asarray(rng.integers(0, width, batch))
    seconds = np.zeros((len(VECTORS), repeats))
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(contender(comm, stage, layers, width, batch, xp)) for stage in range(len(VECTORS))]
        for turn in range(-UNTIMED, repeats):
            for each, mine in zip(runs, seconds, strict=True):
                comm.Barrier()
                began = time.perf_counter()
                each.step(x, y)
                if turn >= 0:
                    mine[turn] = time.perf_counter() - began
        rows = [each.row(UNTIMED + repeats) for each in runs]
        verify(comm, runs, rows)
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return [row | {"seconds": median(mine.tolist())} for row, mine in zip(rows, seconds, strict=True)]


class ShardedSteps:
    """One model in training.

    Args:
        comm: all ranks.
        stage: 0 for `allreduce`.
        model: with its parameters.
        ps: the connection.
        exchange: of stages 2 and 3.
        batch: samples of a step.
    """

    def __init__(
        self, comm: MPI.Intracomm, stage: int, model: Model, ps: Any, exchange: Exchange | None, batch: int
    ) -> None:
        self.stage, self.exchange, self.params = stage, exchange, ps.params
        self._comm, self._ps, self._model = comm, ps, model
        self._context = model.context(batch)

    def step(self, x: Any, y: Any) -> None:
        """One step, with all that was started done."""
        on_ready = self._ps.overlap(len(x))
        loss = float(self._model.gradient(self._context, x, y, on_ready))
        self._ps.step(len(x), loss)
        synchronize(self.params)

    def whole(self) -> Any:
        """All parameters on the host. Collective at stage 3."""
        own = np.asarray(self.params.get() if hasattr(self.params, "get") else self.params)
        if self.stage < 3:
            return own
        assert self.exchange is not None
        slices = self.exchange.slices
        whole = np.empty(slices.whole, own.dtype)
        for unit, part in enumerate(slices.units):
            into = [whole[part.start : part.stop], list(slices.counts(unit))]
            self._comm.Allgatherv(np.ascontiguousarray(own[slices.place(unit)]), into)
        return whole

    def row(self, steps: int) -> dict[str, Any]:
        """What one step moves, and what is kept: arrays of parameters, gradients, Adam's state and units under way."""
        client = self._ps._client
        size, item = self._model.layout.size, self.params.itemsize
        own = client.slices.size if self.stage else size
        kept = {0: 4 * size, 1: 2 * size + 2 * own, 2: size + 3 * own, 3: 4 * own}[self.stage] * item
        kept += 0 if self.exchange is None else self.exchange.buffer_bytes
        both = np.array([client.nbytes / steps if self.stage else 0, kept], np.float64)
        self._comm.Allreduce(MPI.IN_PLACE, both)
        moved, kept = (both / self._comm.size).tolist()
        if not self.stage:
            moved = 2 * (self._comm.size - 1) * size * item / self._comm.size
        return {"stage": self.stage, "ranks": self._comm.size, "parameters": size} | {
            "bytes_moved": moved,
            "bytes_kept": kept,
        }


def synchronize(array: Any) -> None:
    """Waits for a GPU that has the array; on the host there is nothing to wait for."""
    if not isinstance(array, np.ndarray):
        importlib.import_module("cupy").cuda.get_current_stream().synchronize()


@contextlib.contextmanager
def contender(comm: MPI.Intracomm, stage: int, layers: int, width: int, batch: int, xp: Any) -> Iterator[ShardedSteps]:
    """A contender, until its end. Collective."""
    model = Model([Linear(width, relu=True) for _ in range(layers)] + [Linear(width)], (width,))
    options: dict[str, Any] = {"strategy": "allreduce", "rule": "adam", "lr": 1e-3, "clip_norm": 1.0}
    if stage < 2:
        params = xp.asarray(model.init(SEED))
        with psgd.connect(comm, params, shard=stage, **options) as ps:
            model.bind(ps.params, ps.grads)
            yield ShardedSteps(comm, stage, model, ps, None, batch)
        return
    slices = Slices(units.of_stage(model), comm.size, comm.rank)
    params = xp.asarray(by_unit.first_own(model, slices, SEED) if stage == 3 else model.init(SEED))
    with Communicator(comm) as ranks:
        exchange = Exchange(ranks, slices, params, stage)
        with psgd.connect(comm, params, shard=exchange, **options) as ps:
            yield ShardedSteps(comm, stage, by_unit.by_unit(model, exchange, graphs=True), ps, exchange, batch)
        exchange.free()


def verify(comm: MPI.Intracomm, runs: list[ShardedSteps], rows: list[dict[str, Any]]) -> None:
    """Compares all with `allreduce`.

    Raises:
        Error: parameters that are not the same bits, or other bytes than the stage's; on all ranks.
    """
    expected, bad = runs[0].whole(), np.zeros(len(runs), np.int64)
    for number, each in enumerate(runs):
        bad[number] = not np.array_equal(each.whole(), expected)
    comm.Allreduce(MPI.IN_PLACE, bad, MPI.MAX)
    if bad.any():
        raise Error(f"bench sharded: stage {int(bad.argmax())}: expected the parameters of allreduce, bit for bit")
    for row, vectors in zip(rows, VECTORS, strict=True):
        whole = vectors * (comm.size - 1) * row["parameters"] * expected.itemsize
        if round(row["bytes_moved"] * comm.size) != whole:
            raise Error(f"bench sharded: stage {row['stage']}: expected {whole} bytes a step of all ranks")
