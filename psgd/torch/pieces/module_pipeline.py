"""A `nn.Sequential` in stages on several ranks, each of which has a wrapped module with its own layers only."""

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

import numpy as np
import torch
from mpi4py import MPI

from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.kernels.array import address
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.nn.model import Model
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.runtime.agreement import agree
from psgd.runtime.rng import bits
from psgd.torch.pieces import own_layers
from psgd.torch.pieces.own_layers import Init
from psgd.torch.pieces.sequential_stages import SequentialStages
from psgd.torch.pieces.torch_stage import LossOf, TorchStage
from psgd.torch.same_memory import tensor_of
from psgd.torch.wrapped import Wrapped


def pipeline(
    module: torch.nn.Module,
    comm: MPI.Intracomm,
    *,
    cuts: Sequence[int],
    sample: "torch.Tensor | Sequence[int]",
    batch: int,
    microbatches: int = 1,
    loss: LossOf = torch.nn.functional.cross_entropy,
    schedule: str = "1f1b",
    init: Init | None = None,
    seed: int = 0,
    buffers: str = "average",
    device: str = "cpu",
    recompute: str | None = None,
) -> "ModulePipeline":
    """Cuts a `nn.Sequential` into stages, one or more a rank. Collective over `comm`, blocks.

    Each rank keeps its own layers; the tensors of the others are moved to the meta device, in the given module. A
    module that was made on the meta device (`with torch.device("meta"):`) is nowhere whole: each rank gives its own
    layers values.

    Args:
        module: the same description on all ranks, with values on all ranks or on the meta device. On one rank it may
            be any module that takes one tensor and gives one.
        comm: the ranks of the pipeline; it stays the caller's.
        cuts: the numbers of the layers with which the second and further stages begin, ascending.
        sample: one sample, or its shape if its dtype is the module's. The shapes of what goes from stage to stage are
            found by a trial on the meta device.
        batch: most samples of a step.
        microbatches: as of `psgd.parallel.pipeline.Pipeline`.
        loss: of output and labels, the mean over samples.
        schedule: as of `Pipeline`. With pipedream and pipedream-2bw, `pipeline` is a
            `psgd.parallel.continuous.without_flushes.PipeDream`, whose `train` takes the steps.
        init: called with a layer of the sequence that was on the meta device, to give it values; None: the
            `reset_parameters` of its parts.
        seed: of those values, and of dropout.
        buffers: as of `psgd.torch.wrap`, over the copies of a stage that `psgd.connect` trains.
        device: "cpu", or "cuda": each rank's part of the module is moved to its current GPU, and computes there.
        recompute: which layers' activations are not kept but computed a second time in backward, with the same bits:
            "all" that saves memory, a number of layers, each so many as one, or bytes of a microbatch's activations,
            as "500MB". None: none.

    Raises:
        UsageError: something that cannot be; on all ranks.
    """
    how = schedule, init, seed, buffers, device, recompute
    return ModulePipeline(module, comm, cuts, sample, batch, microbatches, loss, *how)


class ModulePipeline(Wrapped):
    """This rank's part of a `nn.Sequential`, made by `psgd.torch.pipeline`; for `psgd.connect`, a wrapped module.

    Attributes:
        module: this rank's layers, with their names in the whole.
        layout, params, grads: as of `Wrapped`.
        pipeline: psgd's, with its counters.
        whole: the layout of the whole module; no rank needs such a vector.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        comm: MPI.Intracomm,
        cuts: Sequence[int],
        sample: "torch.Tensor | Sequence[int]",
        batch: int,
        microbatches: int,
        loss: LossOf,
        schedule: str,
        init: Init | None,
        seed: int,
        buffers: str,
        device: str = "cpu",
        recompute: str | None = None,
    ) -> None:
        whole = _agreed(module, comm, cuts, sample, loss, init, seed)
        self._seed, self._steps = seed, 0
        self._announced: Callable[[range], None] | None = None
        self.pipeline = _pipeline(comm, cast(Model, whole), cuts, schedule, batch, microbatches, device)
        ends = (0, *cuts, len(whole.layers))
        parts = list(itertools.pairwise(ends))[comm.Get_rank() :: comm.Get_size()]
        mine = [whole.layers[index] for part in parts for index in range(*part)]
        with self._as_one(comm):
            for stage, part in zip(self.pipeline.stages, parts, strict=True):
                if recompute is not None:
                    limits = _in_flight(schedule, comm.Get_size(), -(-batch // self.pipeline.microbatch), len(parts))
                    alive = -(-limits[comm.Get_rank()] // len(parts))
                    twice = whole.segments(*part, recompute, self.pipeline.microbatch, alive)
                    cast(TorchStage, stage).recompute(twice)
            super().__init__(own_layers.keep(whole.layers, mine, whole.first_names, init, seed), buffers)
        if isinstance(self.pipeline, PipeDream):
            cast(TorchStage, self.pipeline.stages[0]).moves(self._turn, self._clear)
        self.layout, self.whole = self.pipeline.layout, whole.layout()  # the same places, and which parts they are
        own_layers.share(comm, self.module, whole.first_names)
        if self.pipeline.on_gpu:
            with self._as_one(comm):
                layout = self.layout
                super().to(cast(TorchStage, self.pipeline.stages[0]).device)
                self.layout = layout
                self.follow()

    @contextmanager
    def _as_one(self, comm: MPI.Intracomm) -> Iterator[None]:
        """What goes wrong inside on one rank is raised on all, and the pipeline is closed. Collective, blocks."""
        complaint, cause = None, None
        try:
            yield
        except Exception as error:  # of this rank's layers, or of the user's init: the others must not wait for it
            known, cause = isinstance(error, UsageError), error
            complaint = str(error).removeprefix("psgd.torch.wrap: ") if known else f"{type(error).__name__}: {error}"
        try:
            agree(comm, "psgd.torch.pipeline", {}, complaint)
        except UsageError as refusal:
            self.pipeline.close()
            raise refusal from cause

    def gradient(self, n: int, x: Any, y: Any, key: int | None = None) -> float:
        """Sets the gradients to those of the mean loss over n samples, for `ps.step`. Collective, blocks.

        Args:
            n: samples, the same on all ranks.
            x: (n, ...) tensor or array; used on the first stage's rank only, None elsewhere is fine.
            y: (n, ...) labels; used on the last stage's rank only.
            key: what dropout depends on, with the seed; the same on all ranks. None: the number of calls before.

        Returns:
            The mean loss, the same on all ranks.

        Raises:
            UsageError: on all ranks alike, where one has wrong arguments.
            PeerLostError: a rank failed or ended.
        """
        ready, self._announced = self._announced, None
        self.zero_grad()
        self.pipeline.bind(self.params, self.grads)
        self.pipeline.draw(bits(self._seed, "step", self._steps if key is None else key), np.arange(max(n, 0)))
        self._steps += 1
        return self.pipeline.gradient(n, x, y, ready)

    def evaluate(self, n: int, x: Any, y: Any) -> tuple[float, float]:
        """Right answers and summed loss over n samples, in evaluation mode; the same on all ranks. Collective, blocks.

        Args:
            n: any number of samples, the same on all ranks.
            x: as `gradient`.
            y: as `gradient`. Where they are not classes, there are no right answers.

        Raises:
            UsageError, PeerLostError: as `gradient`.
        """
        self.pipeline.bind(self.params, self.grads)
        return self.pipeline.evaluate(n, x, y)

    def part(self, mesh: ProcessMesh) -> ModelPart:
        """What `psgd.connect(mesh.data, ..., part=...)` needs to clip and to write checkpoints of the whole model.

        Collective over all ranks of the mesh, blocks.

        Args:
            mesh: of whose axes `pipe` this is made, and perhaps `tensor`.
        """
        places = {"pipe": mesh.pipe.Get_rank(), "tensor": mesh.tensor.Get_rank()}
        return ModelPart(mesh.world, mesh.replica, coordinates=places, layout=self.layout, whole=self.whole)

    def _turn(self, params: Any, grads: Any) -> None:
        """Makes parameters and gradients views of these vectors, of one version of the weights."""
        now = self._params.data_ptr(), self._grads.data_ptr()
        if now != (address(params), address(grads)):
            spoiled = self.spoiled
            self._point(tensor_of(params), tensor_of(grads))
            self.spoiled = spoiled

    def _clear(self) -> None:
        """Sets the gradients of the bound vector to zero."""
        self._grads.zero_()

    def announce(self, ready: Callable[[range], None]) -> None:
        """The next `gradient` calls `ready`, a stage at a time."""
        self._announced = ready

    def to(self, device: Any) -> "Wrapped":
        """Refused: a pipeline's stages stay where `device=` says.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"psgd.torch.pipeline: expected its modules to stay where they are, got to({device!r}): pass device="
        )

    def close(self) -> None:
        """Frees what the stages communicate with; call it on all ranks, unless one has failed."""
        self.pipeline.close()

    def __enter__(self) -> "ModulePipeline":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipeline.__exit__(kind, error, trace)


def _pipeline(
    comm: MPI.Intracomm, whole: Model, cuts: Sequence[int], schedule: str, batch: int, microbatches: int, device: str
) -> Pipeline:
    """The pipeline of a schedule. Collective, blocks."""
    entry = catalog.SCHEDULES.get(schedule)
    common: dict[str, Any] = {"batch": batch, "microbatches": microbatches, "device": device}
    if entry is None or entry.flushes:
        return Pipeline(comm, whole, cuts, schedule, **common)
    return PipeDream(comm, whole, cuts, **common, two_versions=schedule == "pipedream-2bw", apart=True)


def _in_flight(schedule: str, ranks: int, microbatches: int, chunks: int) -> tuple[int, ...]:
    """How many microbatches of each rank's stages are between their passes at once."""
    flushes = catalog.SCHEDULES[schedule].flushes
    return catalog.make(*(schedule, ranks, microbatches, chunks) if flushes else ("1f1b", ranks, ranks)).in_flight_limit


def _agreed(
    module: torch.nn.Module,
    comm: MPI.Intracomm,
    cuts: Sequence[int],
    sample: "torch.Tensor | Sequence[int]",
    loss: LossOf,
    init: Init | None,
    seed: int,
) -> SequentialStages:
    """The whole as a description, if it can be cut on all ranks."""
    whole, complaint = None, None
    try:
        whole = SequentialStages(module, sample, loss, uncut=comm.Get_size() == 1 and not cuts)
        own_layers.check(whole.layers, init)
        complaint = _misplaced(whole, cuts, comm.Get_size())
    except UsageError as error:
        complaint = str(error)
    parameters = 0 if whole is None else zlib.crc32(whole.layout().to_json().encode())
    signature = {"seed": seed, "cuts": list(cuts), "module (checksum of names and shapes)": parameters}
    agree(comm, "psgd.torch.pipeline", signature, complaint)
    if whole is None:
        raise AgreedUsageError("psgd.torch.pipeline: no module")
    return whole


def _misplaced(whole: SequentialStages, cuts: Sequence[int], ranks: int) -> str | None:
    """Which rank would have nothing to train, or something twice; wrong cuts are the pipeline's to refuse."""
    ends = (0, *cuts, len(whole.layers))
    parts = list(itertools.pairwise(ends))
    if len(parts) % ranks or any(here >= there for here, there in parts):
        return None
    for rank in range(ranks):
        stages = [whole.cut(*part) for part in parts[rank::ranks]]
        names = [name for stage in stages for name in stage.names_in_whole.values()]
        if twice := [name for name in names if names.count(name) > 1]:
            return f"cuts: expected each parameter in one stage of a rank, got {twice[0]} in several of rank {rank}"
        if not names:
            return f"cuts: expected trainable parameters on each rank, got none on rank {rank} by cuts {tuple(cuts)}"
    return None
