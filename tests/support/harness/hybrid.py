"""Training in every product of pipeline, tensor and data, and the one process that it must equal."""

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import psgd
from harness import simulation
from harness.whole_model import WholeModel
from harness.whole_tensor import cut_alike
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.collectives import Communicator
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.parallel.tensor.plan import plan

LAYERS = (
    Flatten(),
    Linear(24, relu=True),
    Linear(17),
    ReLU(),
    Linear(19, relu=True),
    Linear(16, relu=True),
    Linear(11),
    Linear(9),
)
"""Not divisible; some stages of eight have no parameters."""
SHAPE, CLASSES, SEED = (3, 5), 9, 5
CUTS = {1: (), 2: (4,), 3: (1, 5), 4: (2, 4, 6), 8: (1, 2, 3, 4, 5, 6, 7)}
BATCH = 10
Ended = tuple[dict[str, NDArray[Any]], dict[tuple[int, int], float]]
FACTORISATIONS = [(p, t, 8 // (p * t)) for p in (1, 2, 4, 8) for t in (1, 2, 4, 8) if p * t <= 8]
"""All ordered products of three axes that make 8 ranks."""


def stages_of(pipe: int, schedule: str) -> tuple[int, ...]:
    """Where stages begin: two a rank where the schedule has several."""
    return CUTS[2 * pipe if catalog.SCHEDULES[schedule].chunks else pipe]


def count(worker: int, clock: int) -> int:
    """Samples of a worker's step: not the same for all, so that the last microbatch is ragged in other ways."""
    return BATCH - (worker + clock) % 3


def samples(worker: int, clock: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng([worker, clock])
    n = count(worker, clock)
    return rng.standard_normal((n, *SHAPE)).astype(np.float32), rng.integers(0, CLASSES, n)


def rate(samples: float) -> float:
    return 0.1 / (1.0 + samples / 1000)


class Alone:
    """The same in one process, which may go on with other cuts and another number of workers.

    Args:
        rule, clip: of the optimizer.

    Attributes:
        layout: of `w`.
        w: the parameters.
        losses: by worker and step, of the newest `train`.
    """

    def __init__(self, rule: str, clip: float) -> None:
        model = Model(LAYERS, SHAPE)
        self.layout, self.w = model.layout, model.init(SEED)
        self.losses: dict[tuple[int, int], float] = {}
        self._rule, self._clip, self._applied = simulation.Rule(rule, self.w), clip, 0

    def train(
        self, sizes: tuple[int, int, int], first: int, last: int, schedule: str = "1f1b", microbatches: int = 4
    ) -> "Alone":
        """Takes the steps from `first` up to `last`, cut like ranks of these sizes."""
        pipe, tensor, data = sizes
        layers, _ = cut_alike(LAYERS, SHAPE, tensor, stages_of(pipe, schedule))
        whole = WholeModel(layers, SHAPE)
        size = -(-BATCH // microbatches)
        backward = "last" if schedule == "gpipe" else "first"
        gradient = whole.gradient_of(samples, lambda n: [min(size, n - at) for at in range(0, n, size)], backward)
        before = self._applied
        self.w, _, applied = simulation.synchronous(
            self.w,
            data,
            self._rule,
            lambda samples: rate(before + samples),
            lambda worker: last - first,
            lambda worker, clock: count(worker, first + clock),
            lambda w, worker, clock: gradient(w, worker, first + clock),
            clip=self._clip,
            served=True,
        )
        self._applied, self.losses = before + applied, whole.losses
        return self

    @property
    def ended(self) -> Ended:
        """By name the parameters, and the losses."""
        return self.layout.views(self.w), self.losses


class Hybrid:
    """One rank's part of a run. Creating is collective over `comm`.

    Args:
        comm: pipe x tensor x data ranks, servers among those of data.
        sizes: of the axes.
        steps: of each worker, in all.
        schedule, microbatches: of the pipeline.
        options: of `psgd.connect`.

    Attributes:
        params: in the end, by name.
        layout: of this rank.
        began: the first step that this run has made.
        losses: this rank's, by step.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        sizes: tuple[int, int, int],
        steps: int,
        schedule: str = "1f1b",
        microbatches: int = 4,
        **options: Any,
    ) -> None:
        pipe, tensor, data = sizes
        cuts = stages_of(pipe, schedule)
        self.losses: dict[int, float] = {}
        self.began = 0
        whole = Model(LAYERS, SHAPE)
        with ProcessMesh(comm, pipe=pipe, tensor=tensor, data=data) as mesh, Communicator(mesh.tensor) as ranks:
            model = Model(plan(LAYERS, SHAPE, ranks, cuts), SHAPE)
            with Pipeline(
                mesh.pipe, model, cuts, schedule, batch=BATCH, microbatches=microbatches, crowded=True
            ) as pipeline:
                self.layout = pipeline.layout
                place = {"pipe": mesh.coordinates["pipe"], "tensor": mesh.coordinates["tensor"]}
                self.part = ModelPart(
                    mesh.world, mesh.replica, coordinates=place, layout=pipeline.layout, whole=whole.layout
                )
                params = pipeline.init(SEED)
                with psgd.connect(mesh.data, params, part=self.part, lr=rate, **options) as ps:
                    self.began = ps.clock
                    for clock in range(ps.clock, steps):
                        pipeline.bind(ps.params, ps.grads)
                        n = count(ps.worker, clock)
                        loss = pipeline.gradient(n, *samples(ps.worker, clock), on_ready=ps.overlap(n))
                        self.losses[clock] = loss
                        self.worker = ps.worker
                        ps.step(n, loss)
                self.params = {name: view.copy() for name, view in pipeline.layout.views(params).items()}
                mesh.world.Barrier()  # rank 0 has published what there is

    def check(self, alone: Ended) -> None:
        """Asserts that this rank has the bits of its part of the whole, and that losses are equal."""
        params, losses = alone
        for parameter in self.layout.parameters:
            whole = params[parameter.name][parameter.slices]
            np.testing.assert_array_equal(self.params[parameter.name], whole, err_msg=parameter.name)
        for clock, loss in self.losses.items():
            assert loss == losses[self.worker, clock], (clock, loss)
