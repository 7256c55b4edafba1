"""A model in pieces whose copies share each piece: `--shard 2` and `--shard 3` with `--mesh`, as what a run trains."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.backend.interface import Backend
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.layout import Layout
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.parallel.cuts.decision import Decision
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.schedules.schedule import Schedule
from psgd.parallel.sharded.pieces.sharded_pipeline import ShardedPipeline
from psgd.parallel.sharded.slices import Slices
from psgd.runtime.agreement import gather
from psgd.training import gathered
from psgd.training.pieces.model_in_pieces import CutModel
from psgd.training.sharded.sharded_pipeline_backend import ShardedPipelineBackend


class ShardedPiece(CutModel):
    """One rank's part of such a model. Implements `Trainable`.

    Args:
        pipeline, tensor, mesh, schedule, whole, tokens: as of `CutModel`.

    Attributes:
        exchange: of its units.
    """

    pipeline: ShardedPipeline

    def __init__(
        self,
        pipeline: ShardedPipeline,
        tensor: Communicator,
        mesh: ProcessMesh,
        schedule: Schedule,
        whole: Layout,
        tokens: int = 1,
    ) -> None:
        super().__init__(pipeline, tensor, mesh, schedule, whole, tokens)
        self.exchange = pipeline.exchange

    @property
    def evaluates_together(self) -> bool:
        """Whether an evaluation needs all copies."""
        return self.exchange.stage == 3

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        return self.exchange.params

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        common = self.pipeline, self.mesh.pipe, dataset, statistics, config.batch_size, self._tokens
        if config.device == "cpu":
            self._draws = made = ShardedPipelineBackend(*common)
            return made
        from psgd.training.sharded.sharded_cuda_pipeline import ShardedCudaPipelineBackend

        keep = None if config.data_device == "auto" else config.data_device == "cuda"
        self._draws = there = ShardedCudaPipelineBackend(*common, keep)
        return there

    def agreed(self, stop: bool) -> bool:
        """Whether any rank of this copy says so, or of all where they evaluate together. Collective, blocks."""
        if not self.evaluates_together:
            return super().agreed(stop)
        return any(each["stop"] for each in gather(self.mesh.world, {"stop": bool(stop)}))

    def save(self, path: Path, vector: Array) -> None:
        """Writes the whole model's weights, one parameter at a time. Collective; in stage 3 over all copies."""
        if not self.evaluates_together:
            super().save(path, vector)
            return
        mesh, whole = self.mesh, self.part.whole
        views = _Gathered(self.layout, vector, self.exchange.slices, mesh.data)
        if mesh.coordinates["data"] == 0:
            gathered.write(path, vector, self.layout, whole, mesh.replica, "--save", views)
            return
        layouts = [Layout.from_json(each["layout"]) for each in gather(mesh.replica, {"layout": self.layout.to_json()})]
        by_name = gathered.owners(layouts)
        for place in gathered.places(whole):
            if any(owner == mesh.replica.Get_rank() for owner, _ in by_name[place[1]]):
                views[place[1]]


class _Gathered(Mapping[str, Any]):
    """A parameter is gathered when it is asked for: whole on the first copy, anything on others. Collective, blocks."""

    def __init__(self, layout: Layout, own: Array, slices: Slices, copies: MPI.Intracomm) -> None:
        self._parameters = {p.name: p for p in layout.parameters}
        self._own, self._slices, self._copies = own, slices, copies

    def __getitem__(self, name: str) -> Any:
        p, slices = self._parameters[name], self._slices
        part = range(p.offset, p.stop)
        whole, mine = np.empty(p.size, self._own.dtype), slices.within(part)
        counts = [len(slices.of(rank).within(part)) for rank in range(slices.ranks)]
        self._copies.Gatherv(np.ascontiguousarray(self._own[mine.start : mine.stop]), [whole, counts], 0)
        return whole.reshape(p.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def cut_sharded(
    config: TrainConfig,
    mesh: ProcessMesh,
    tensor: Communicator,
    model: Model,
    whole: Layout,
    tokens: int,
    cuts: Cuts,
    wish: Decision,
    recompute: Callable[[Stage], Stage],
    graphs: Callable[[], bool],
) -> ShardedPiece:
    """This rank's part. Collective over the mesh, blocks.

    Args:
        config: of the run.
        mesh: all ranks.
        tensor: what the layers exchange partial results by; freed with what is returned.
        model: whose layers are cut by tensor.
        whole: of the whole model.
        tokens: of a sample that has a loss for each of them; else 1.
        cuts: where stages begin.
        wish: how the model is cut.
        recompute: makes of a stage one that recomputes activations.
        graphs: whether passes may become CUDA graphs, once they have run.
    """
    assert config.shard is not None
    pipeline = ShardedPipeline(
        mesh.pipe,
        model,
        cuts,
        wish.schedule,
        copies=mesh.data,
        shard=config.shard,
        batch=wish.batch,
        microbatches=wish.microbatches,
        recompute=recompute,
        seed=config.seed,
        steps=config.own.get("accumulate") or 1,
        device=config.device,
        graphs=graphs,
    )
    return ShardedPiece(pipeline, tensor, mesh, wish.plan(cuts), whole, tokens)
