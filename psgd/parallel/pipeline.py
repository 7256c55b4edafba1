"""A model in stages on several ranks, trained and evaluated in microbatches as a schedule says."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.liveness import Liveness
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.wait import Waiter, cores_per_rank
from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import ContractError, DataError, DivergedError, PeerLostError, UsageError
from psgd.nn.layout import Layout
from psgd.nn.model import Model, Tally
from psgd.nn.stage import OnReady, Stage
from psgd.parallel.microbatches import Batch
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.instruction import Instruction, place
from psgd.parallel.stages import device_links, links, tied
from psgd.parallel.stages.announcement import Announcement
from psgd.parallel.stages.captured_stage import on_gpu
from psgd.parallel.stages.chunk import Chunk
from psgd.parallel.stages.executor import Executor
from psgd.parallel.stages.joined import InOrder, join
from psgd.parallel.stages.tied import TiedGradients
from psgd.parallel.stages.time_spent import Counters
from psgd.runtime import launcher_env
from psgd.runtime.agreement import agree
from psgd.runtime.alarm import Alarm


class Pipeline:
    """This rank's stages of a model, and the way to its gradients. Making one is collective, blocks.

    With one stage a rank, rank i has stage i. With more, the stages go round the ranks: stage s is on rank s mod p.
    What is computed has the bits of a sequential program that cuts the model and the batch alike, and adds the
    microbatches' gradients in the schedule's order: from the first to the last, but for gpipe, which adds them from
    the last to the first.

    Args:
        comm: the ranks of the pipeline; it stays the caller's.
        model: the whole, as a description: on no vector. No rank makes all its parameters.
        cuts: the numbers of the layers with which the second and further stages begin, ascending.
        schedule: one of `psgd.parallel.schedules.catalog`.
        batch: most samples of a step.
        microbatches: into how many a batch is cut: all have ceil(batch / microbatches) samples but the last one, and
            a smaller batch has fewer of them.
        crowded: ranks outnumber cores on this node; None counts those of `comm`, and all if the launcher tells.
        recompute: makes of a stage one that recomputes activations, as `Stage.recomputed`; None keeps all.
        device: "cpu", or "cuda": stages compute on each rank's current GPU, and messages go from GPU to GPU where they
            are of one host. Vectors are CuPy's then; samples and labels are there or on the host.
        graphs: says, once passes have run on a GPU, whether they may become CUDA graphs: not where layers wait for the
            GPU. None: they may. With `PSGD_CUDA_GRAPHS=0` none do.

    Attributes:
        layout: of this rank's parameters, with their names in the whole; may be empty.
        stages: of this rank, in the layout's order.
        counters: what this rank has computed and waited for.
        microbatch: samples of each microbatch but the last.
        tally: told by `evaluate` of labels and predictions on the last stage's rank, as by `Model.evaluate`, or None.

    Raises:
        AgreedUsageError, AgreedContractError: on all ranks, where arguments are wrong or differ.
    """

    _chunk = Chunk

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: Model,
        cuts: Sequence[int],
        schedule: str = "1f1b",
        *,
        batch: int,
        microbatches: int = 1,
        crowded: bool | None = None,
        recompute: Callable[[Stage], Stage] | None = None,
        device: str = "cpu",
        graphs: Callable[[], bool] | None = None,
    ) -> None:
        ranks = comm.Get_size()
        complaint = _complaint(ranks, model, cuts, schedule, batch, microbatches)
        if device not in ("cpu", "cuda"):
            complaint = f"device: expected cpu or cuda, got {device!r}"
        signature = {"schedule": schedule, "batch": batch, "microbatches": microbatches, "cuts": list(cuts)}
        signature["device"] = device
        agree(comm, "pipeline", signature | {"model": _description(model)}, complaint)
        self._ranks, self._rank, self._schedule = ranks, comm.Get_rank(), schedule
        self._batch, self._size = batch, -(-batch // microbatches)
        self._chunks_each = (len(cuts) + 1) // ranks
        self._comm = comm.Dup()
        others = [rank for rank in range(ranks) if rank != self._rank]
        alike = (DataError, ContractError, DivergedError, UsageError, PeerLostError)
        self._alarm = Alarm(self._comm, others, self._rank, alike, _cause)
        self._liveness = Liveness(self._comm, self._alarm, "pipeline", "rank")
        crowded = _crowded(self._comm, len(self._liveness.node)) if crowded is None else crowded
        waiter = Waiter(crowded, self._liveness.check)
        ends = (0, *cuts, len(model.layers))
        mine = range(self._rank, len(ends) - 1, ranks)
        self.stages: tuple[Stage, ...] = tuple(model.cut(ends[at], ends[at + 1]) for at in mine)
        if recompute is not None:
            self.stages = tuple(map(recompute, self.stages))
        self.layout, self._ranges = _joined([stage.layout for stage in self.stages])
        shapes = [model.shapes[cut] for cut in cuts]
        depths = links.depths(schedule, ranks, self._chunks_each, -(-batch // self._size))
        self._gpu: Any = None if device == "cpu" else _gpu()
        self._captures: Callable[[], bool] = lambda: self._gpu.captures and (graphs is None or graphs())
        self._xp: Any = np if self._gpu is None else self._gpu.xp
        self._mapped: device_links.Mapped | None = None
        every = links.edges(shapes, ranks, depths)
        if self._gpu is None:
            found = links.connect(self._comm, every, self._size, model.dtype)
        else:
            found, self._mapped = device_links.connect(self._comm, every, self._size, model.dtype, self._gpu)
        last = len(ends) - 2
        self._chunks: list[Chunk] = []
        for at, stage in zip(mine, self.stages, strict=True):
            computes = self._computed(stage, at == last)
            self._chunks.append(self._chunk(computes, found.get(at, links.Links()), self._size, at == 0, at == last))
        self._executor = Executor(self._chunks, waiter)
        self._told = Announcement(self._comm, place(last, ranks)[0])
        self._tied = self._tie([model.cut(start, stop) for start, stop in itertools.pairwise(ends)])
        self._grads: Array = None
        self._failed = False
        self._draws: dict[str, Any] = {}
        self.tally: Tally | None = None

    def _computed(self, stage: Stage, last: bool) -> Any:
        """What a chunk computes by: the stage, or on a GPU what has it."""
        if self._gpu is None:
            return stage
        return on_gpu(stage, self._gpu, -(-self._batch // self._size), last, self._captures)

    @property
    def _captured(self) -> list[Any]:
        """The stages on a GPU."""
        return [] if self._gpu is None else [chunk.stage for chunk in self._chunks]

    @property
    def counters(self) -> Counters:
        """What this rank has computed and waited for."""
        return self._executor.counters

    @property
    def on_gpu(self) -> bool:
        """Whether stages are on GPUs: the times of passes are then those in which the host has started them."""
        return self._gpu is not None

    @property
    def microbatch(self) -> int:
        """Samples of each microbatch but the last."""
        return self._size

    @property
    def executor(self) -> Executor:
        """What runs the schedule; its `observer` sees each instruction."""
        return self._executor

    def init(self, seed: int) -> NDArray[Any]:
        """Returns this rank's part of the model's first parameters on the host; the same bits whatever the cuts."""
        return np.concatenate([stage.init(seed) for stage in self.stages])

    def bind(self, params: Array, grads: Array = None) -> None:
        """Uses these vectors of this rank's layout from now on, as `Stage.bind`.

        Args:
            params: (layout.size,); read, never written.
            grads: the same; written by `gradient`.

        Raises:
            UsageError: wrong shape, dtype or device.
        """
        for name, vector in (("params", params), ("grads", grads)):
            if vector is not None and vector.shape != (self.layout.size,):
                raise UsageError(f"bind: {name}: expected {self.layout.size} elements, got shape {vector.shape}")
            if vector is not None and array_module(vector) is not self._xp:
                where = f"a vector of {self._xp.__name__}, as the pipeline's device says"
                raise UsageError(f"bind: {name}: expected {where}, got {type(vector)}")
        for chunk, part in zip(self._chunks, self._ranges, strict=True):
            chunk.stage.bind(params[part.start : part.stop], None if grads is None else grads[part.start : part.stop])
        self._grads = grads

    def draw(self, key: int, samples: NDArray[np.integer[Any]]) -> None:
        """The next `gradient` draws by these, where layers draw: dropout drops. To be called on all ranks alike.

        Args:
            key: as `Context.draw`.
            samples: (n,) integers on the host, the numbers of that gradient's samples.
        """
        self._draws = {"key": key, "numbers": samples}

    def gradient(self, n: int, x: Array, y: Array, on_ready: OnReady | None = None) -> float:
        """Overwrites the bound grads with the gradient of the mean loss over n samples. Collective, blocks.

        Args:
            n: samples, the same on all ranks, 1 to `batch`.
            x: (n, ...) samples; used on the first stage's rank only, None elsewhere is fine.
            y: (n,) labels; used on the last stage's rank only.
            on_ready: called with each range of this rank's vector as it is final, from its end to its start.

        Returns:
            The mean loss, the same on all ranks: the microbatches' are added from the first to the last.

        Raises:
            UsageError, DataError: on all ranks alike, where one has wrong arguments.
            ContractError: on all ranks, where n differs.
            PeerLostError: a rank failed or ended.
        """
        with self._together():
            batch = self._taken("gradient", n, x, y, self._batch)
            order = InOrder(self.layout.size, on_ready, self._tied.ranges) if on_ready is not None else None
            ready = [None if order is None else order.shifted(part.start) for part in self._ranges]
            for stage in self._captured:
                stage.begin()
            self._executor.train(self._program(batch.microbatches), batch, ready)
            for stage in self._captured:
                self._executor.wait(stage.done)
            self._tied.start(self._grads)
            self._executor.wait(self._tied.done)
            self._tied.finish(self._grads)
            if order is not None:
                order.release()
            losses = self._chunks[-1].losses
            if losses:
                self._told.tell(sum(float(losses[k]) for k in range(batch.microbatches)), 0.0)
            self._executor.wait(self._told.known)
            return self._told.values[0]

    def evaluate(self, n: int, x: Array, y: Array) -> tuple[float, float]:
        """Right answers and summed loss over any number of samples, as `Model.evaluate`. Collective, blocks.

        The same on all ranks.

        Args:
            n: samples, the same on all ranks, 0 or more.
            x: as `gradient`.
            y: as `gradient`.

        Raises:
            UsageError, DataError: as `gradient`.
            PeerLostError: as `gradient`.
        """
        with self._together():
            if n == 0:
                return 0.0, 0.0
            batch = self._taken("evaluate", n, x, y, None)
            right, loss = self._executor.evaluate(self._forward_program(batch.microbatches), batch)
            if self._rank == self._told.source:
                self._told.tell(float(right), loss)
            self._executor.wait(self._told.known)
            right, loss = self._told.values
            return (int(right) if right.is_integer() else right), loss

    def close(self) -> None:
        """Frees links and communicator; call it on all ranks, unless one has failed. A second call does nothing."""
        if self._comm == MPI.COMM_NULL:
            return
        for chunk in self._chunks:
            chunk.close()
        if self._mapped is not None and not self._failed:
            self._mapped.close()
        self._told.close()
        self._tied.close(self._failed)
        self._alarm.close()
        self._liveness.close()
        # After a failure messages are left that nobody takes: whoever got this communicator's number would find them.
        if self._failed:
            keep_for_ever(self._comm)
            self._comm = MPI.Intracomm()
        else:
            self._comm.Free()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._fail(error)
        self.close()

    def _fail(self, error: BaseException | None) -> None:
        if not self._failed:
            keep_for_ever(self)  # the others' last messages may still come, into memory that is this object's
        self._failed = True
        self._alarm.ring(error)

    def _program(self, microbatches: int) -> Sequence[Instruction]:
        schedule = catalog.make(self._schedule, self._ranks, microbatches, self._chunks_each)
        return schedule.programs[self._rank]

    def _forward_program(self, microbatches: int) -> Sequence[Instruction]:
        """Forward passes alone: of more chunks than one, in the order of training."""
        if self._chunks_each == 1:
            return catalog.make("inference", self._ranks, microbatches).programs[self._rank]
        return [each for each in self._program(microbatches) if each.kind == "F"]

    def _taken(self, call: str, n: int, x: Array, y: Array, most: int | None) -> Batch:
        """This rank's view of the samples, if they are what its stages need."""
        if n < 1 or (most is not None and n > most):
            raise UsageError(f"{call}: expected 1 to {most} samples (the pipeline's batch), got {n}")
        if self._rank == 0 and (x is None or len(x) != n):
            raise UsageError(f"{call}: x: expected {n} samples on the first stage, got {_length(x)}")
        if self._rank == self._told.source and (y is None or len(y) != n):
            raise UsageError(f"{call}: y: expected {n} labels on the last stage, got {_length(y)}")
        draws, self._draws = (self._draws, {}) if most is not None else ({}, self._draws)
        if draws and len(draws["numbers"]) != n:
            raise UsageError(f"{call}: expected draw() with the numbers of {n} samples, got {len(draws['numbers'])}")
        return Batch(n, self._size, x, y, **draws, tally=self.tally)

    def _tie(self, stages: Sequence[Stage]) -> TiedGradients:
        """Finds who holds parameters of this rank too."""
        sizes = [{stage.names_in_whole[p.name]: p.size for p in stage.layout.parameters} for stage in stages]
        ties = tied.find(sizes)
        found = {tie.name for tie in ties}
        mine = {}
        for place_here, (stage, part) in enumerate(zip(self.stages, self._ranges, strict=True)):
            names = stage.names_in_whole
            for p in stage.layout.parameters:
                if names[p.name] in found:
                    at = place_here * self._ranks + self._rank
                    mine[names[p.name], at] = range(part.start + p.offset, part.start + p.stop)
        return TiedGradients(self._comm, ties, mine, stages[0].dtype, self.on_gpu)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What stops this rank stops the others too, in their next wait, with the same error."""
        try:
            with self._liveness.guard():
                yield
        except BaseException as error:
            self._fail(error)
            raise


def _gpu() -> Any:
    """The current GPU; imported only where one is used."""
    from psgd.parallel.stages.gpu import Gpu

    return Gpu()


def _length(array: Array) -> str:
    return "None" if array is None else str(len(array))


def _cause(rank: int) -> str:
    return f"pipeline: rank {rank} failed; that rank's own output says why"


def _crowded(comm: MPI.Intracomm, here: int) -> bool:
    """Whether ranks outnumber cores. Collective, blocks.

    The job may have other ranks on this node: where all of these may use the same cores, so may the others.
    """
    each = cores_per_rank(comm)
    cores = round(each * here)
    return each < 1 or (cores == len(os.sched_getaffinity(0)) and launcher_env.started_here() > cores)


def _complaint(
    ranks: int, model: Model, cuts: Sequence[int], schedule: str, batch: int, microbatches: int
) -> str | None:
    """What is wrong with the arguments of this rank, if anything."""
    layers, stages = len(model.layers), len(cuts) + 1
    ends = (0, *cuts, layers)
    if any(here >= there for here, there in itertools.pairwise(ends)):
        return f"cuts: expected ascending numbers of layers, 1 to {layers - 1}, so that no stage is empty, got {cuts}"
    if stages % ranks:
        return f"cuts: expected {ranks} stages, or a multiple, for {ranks} ranks, got {stages} by cuts {tuple(cuts)}"
    if not 1 <= microbatches <= batch:
        return f"microbatches: expected 1 to {batch} (the samples of a batch), got {microbatches}"
    entry = catalog.SCHEDULES.get(schedule)
    if entry is not None and not (entry.trains and entry.flushes):
        able = ", ".join(name for name, each in catalog.SCHEDULES.items() if each.trains and each.flushes)
        return f"schedule: expected one that computes a gradient a batch ({able}), got {schedule!r}"
    try:
        catalog.make(schedule, ranks, microbatches, stages // ranks)
    except UsageError as error:
        return str(error)
    return None


def _description(model: Model) -> str:
    """What must be the same on all ranks, as text."""
    layers = " ".join(f"{layer.name}{shape}" for layer, shape in zip(model.layers, model.shapes, strict=True))
    return f"{layers} -> {model.output_shape} {model.dtype}"


def _joined(layouts: Sequence[Layout]) -> tuple[Layout, list[range]]:
    """One layout is its own: nothing of it can get lost."""
    return (layouts[0], [range(layouts[0].size)]) if len(layouts) == 1 else join(layouts)
