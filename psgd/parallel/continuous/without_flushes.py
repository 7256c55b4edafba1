"""PipeDream: a pipeline that is never empty, because its ranks take steps without waiting for each other.

`psgd.parallel.schedules.pipedream` says what is stale then, and which weights each pass uses. That order is fixed: two
runs have the same bits, and there is nothing to record or to replay.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.optim.optimizer import Optimizer
from psgd.parallel.continuous.stash import Copies, Stash
from psgd.parallel.continuous.step_losses import StepLosses
from psgd.parallel.microbatches import Batch
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import pipedream
from psgd.parallel.stages import tied
from psgd.runtime.agreement import agree

Batches = Callable[[int], tuple[Array, Array]]
"""From the number of a step of this call to its samples and labels, which stay unchanged until its step is taken.

On a GPU, what is put on the current stream behind a step's last backward pass may change them.
"""

Draws = Callable[[int], tuple[int, Array]]
"""From the number of a step to the key and the samples' numbers by which layers draw: see `Context.draw`."""

Combine = Callable[[Array], None]
"""Changes a gradient in place."""

Take = Callable[[int, float], None]
"""Takes a step: changes the parameters by the gradient of so many samples, whose mean loss it gets. It may block."""


@dataclass(frozen=True)
class _StepBatch(Batch):
    """A batch whose microbatches are numbered on from those before it.

    Attributes:
        first: the number of its first one.
    """

    first: int = 0

    def part(self, microbatch: int) -> slice:
        return super().part(microbatch - self.first)


class PipeDream(Pipeline):
    """This rank's stage of a pipeline without flushes. Making one is collective, blocks.

    It is a `Pipeline` too: `evaluate` is the same, and `gradient` flushes, as 1F1B.

    On GPUs all of a rank is on its current stream, in the order of its program: passes, the copies of weights that a
    pass still needs, and the steps. So a step comes behind the passes that read the weights which it changes, and no
    host waits for that. Hosts wait for the loss of each step alone, which the last stage's GPU has before the step's
    last backward pass.

    Args:
        comm: as `Pipeline`.
        model: as `Pipeline`.
        cuts: as `Pipeline`; one stage a rank.
        batch: samples of a step.
        microbatches: into how many a batch is cut. With 1, and stashed weights, it is PipeDream as published.
        two_versions: keep two versions of the weights (2BW): every pass of a step uses the weights before the newest
            step, on all ranks alike. Needs at least as many microbatches as ranks. Else each rank uses its newest
            weights for a forward pass, and keeps them for the backward pass: up to one version for each rank from it
            to the last.
        crowded: as `Pipeline`.
        recompute: as `Pipeline`.
        apart: each version of the weights that passes use is a copy, as of another library's stages, whose passes
            refer to the memory of the weights until backward.
        device: as `Pipeline`; parameters are CuPy's where it is "cuda", and their optimizer's state too.
        graphs: as `Pipeline`. A pass has a graph for each version's memory that it meets, of which there are few.

    Attributes:
        versions_most: versions of the weights that this rank has had at once, the newest included.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: Model,
        cuts: Sequence[int],
        *,
        batch: int,
        microbatches: int = 1,
        two_versions: bool = False,
        crowded: bool | None = None,
        recompute: Callable[[Stage], Stage] | None = None,
        apart: bool = False,
        device: str = "cpu",
        graphs: Callable[[], bool] | None = None,
    ) -> None:
        ranks = comm.Get_size()
        complaint = _complaint(ranks, model, cuts, batch, microbatches, two_versions, device)
        agree(comm, "pipedream", {"two_versions": two_versions}, complaint)
        # As many microbatches as can be in flight: links get room for them.
        room: dict[str, Any] = {"batch": batch * ranks, "microbatches": microbatches * ranks}
        places: dict[str, Any] = {"device": device, "graphs": graphs}
        super().__init__(comm, model, cuts, "1f1b", **room, crowded=crowded, recompute=recompute, **places)
        # Without it, neighbours with equal work have no time to spare: each is late where the other one was.
        self._chunks[0].early = True
        self.versions_most = 1
        self._losses = StepLosses(self._comm, self._told.source, ranks + 1)
        self._samples = batch
        self._each = -(-batch // self.microbatch)
        self._two_versions, self._apart = two_versions, apart
        self._copies = Copies()
        self._gradient: Array = None
        self._position = 0

    @property
    def ranks(self) -> int:
        """How many there are, each with a stage."""
        return self._ranks

    def train(
        self,
        optimizer: Optimizer,
        samples: int,
        batches: Batches,
        draws: Draws | None = None,
        combine: Combine | None = None,
    ) -> float:
        """Takes a step for each batch of so many samples. Collective, blocks.

        The pipeline fills at the beginning and drains at the end, so the more samples a call has, the smaller is the
        bubble.

        Args:
            optimizer: of this rank's parameters, `optimizer.params` of `layout.size`; the same rule and learning rate
                on all ranks. Its state goes on from call to call.
            samples: of this call, 1 or more, the same on all ranks: steps of `batch` each, the last one of the rest.
            batches: called in order, on the first stage's and the last stage's rank, which need the samples and the
                labels. Both see the same batches.
            draws: for layers that draw, such as dropout; called on all ranks alike.
            combine: called with this rank's gradient before each step, which may change it and may block: to average
                it over other pipelines that train the same stage on other samples.

        Returns:
            The mean loss of all samples, the same on all ranks; each microbatch's is that of the weights that it used.

        Raises:
            UsageError: an optimizer that clips by the norm: no rank ever has a whole gradient's.
            PeerLostError: a rank failed or ended.
        """
        with self._together():
            if optimizer.clips:
                raise UsageError(
                    "train: expected an optimizer with clip_norm=0: no rank ever has the norm of a whole gradient"
                )
        if self._gradient is None:  # the same in each call: passes on a GPU are recorded for it
            self._gradient = np.zeros_like(optimizer.params)
        grads = self._gradient

        def take(n: int, loss: float) -> None:
            if combine is not None:
                combine(grads)
            optimizer.take(grads, 1.0, self._position)
            self._position += n

        return self.steps(optimizer.params, grads, samples, batches, take, draws)

    def steps(
        self,
        params: Array,
        grads: Array,
        samples: int,
        batches: Batches,
        take: Take,
        draws: Draws | None = None,
    ) -> float:
        """As `train`, for parameters whose steps someone else takes. Collective, blocks.

        Args:
            params: (layout.size,), this rank's newest; `take` changes them in place, nobody else does.
            grads: the same; has a step's gradient, of the mean loss, when `take` is called.
            samples: as `train`.
            batches: as `train`.
            take: called once for each step, in order, on all ranks; at different times.
            draws: as `train`.

        Raises:
            PeerLostError: as `train`.
        """
        with self._together():
            return self._run(params, grads, samples, batches, take, draws)

    def _run(
        self, params: Array, grads: Array, samples: int, batches: Batches, take: Take, draws: Draws | None
    ) -> float:
        if samples < 1:
            raise UsageError(f"train: samples: expected 1 or more, got {samples}")
        if params.shape != (self.layout.size,):
            raise UsageError(f"train: optimizer: expected {self.layout.size} parameters, got shape {params.shape}")
        whole, rest = divmod(samples, self._samples)
        microbatches = whole * self._each + -(-rest // self.microbatch)
        program = pipedream.program(self._rank, self._ranks, microbatches, self._each)
        used = pipedream.versions(program, self._each, self._two_versions)
        stash = Stash(params, used, self._apart, self._copies)
        ends = self._rank in (0, self._told.source)
        executor, bound = self._executor, None
        steps: dict[int, _StepBatch] = {}
        total = 0.0
        self._begin()
        for each in program:
            step = each.microbatch // self._each
            if each.kind != "U":
                if step not in steps:
                    n = min(self._samples, samples - step * self._samples)
                    steps[step] = self._step_batch(step, n, batches if ends else None, draws)
                if (weights := stash.weights(each.microbatch)) is not bound:
                    bound = weights
                    self.bind(weights, grads)
                executor.one(each, steps[step])
                continue
            batch = steps.pop(step)
            loss = self._loss_of_step()
            total += loss * batch.samples
            start = time.perf_counter()
            stash.keep(each.microbatch)
            take(batch.samples, loss)
            executor.done(each, start, time.perf_counter())
            self._begin()
        self.versions_most = max(self.versions_most, stash.most)
        stash.end()
        self.bind(params, grads)
        for stage in self._captured:
            stage.turn()
        return total / samples

    def _begin(self) -> None:
        """The gradient of a step begins. On a GPU its losses come where those of the last step were, which are read."""
        self._executor.begin(self._each, (None,))
        for stage in self._captured:
            stage.begin()

    def _loss_of_step(self) -> float:
        """The mean loss of the step whose last backward pass is done here: the last stage did that before."""
        executor, losses = self._executor, self._losses
        if self._rank != self._told.source:
            executor.wait(losses.known)
            return losses.value
        # On a GPU this stage's newest backward pass is behind the loss: work for it while its host waits, and goes on.
        for stage in self._captured:
            executor.wait(stage.done)
        found = self._chunks[0].losses
        executor.wait(losses.free)
        losses.tell(sum(float(found[k]) for k in sorted(found)))
        return losses.value

    def close(self) -> None:
        """As of `Pipeline`."""
        self._losses.close()
        super().close()

    def _step_batch(self, step: int, n: int, batches: Batches | None, draws: Draws | None) -> _StepBatch:
        x, y = (None, None) if batches is None else batches(step)
        key, numbers = (None, None) if draws is None else draws(step)
        if numbers is not None and len(numbers) != n:
            raise UsageError(f"train: step {step}: draws: expected the numbers of {n} samples, got {len(numbers)}")
        taken = self._taken(f"train: step {step}", n, x, y, None)
        return _StepBatch(n, taken.size, x, y, key, numbers, first=step * self._each)


def _complaint(
    ranks: int, model: Model, cuts: Sequence[int], batch: int, microbatches: int, two_versions: bool, device: str
) -> str | None:
    """What is wrong with the arguments of this rank, if anything that `Pipeline` does not see."""
    if not 1 <= microbatches <= batch:
        return f"microbatches: expected 1 to {batch} (the samples of a batch), got {microbatches}"
    if len(cuts) + 1 != ranks:
        return f"cuts: expected {ranks} stages, one for each rank, got {len(cuts) + 1} by cuts {tuple(cuts)}"
    each = -(-batch // -(-batch // microbatches))
    if two_versions and each < ranks:
        return f"microbatches: expected {ranks} or more, as many as ranks, for two versions of the weights, got {each}"
    ends = (0, *cuts, len(model.layers))
    if all(start < stop for start, stop in itertools.pairwise(ends)):
        stages = [model.cut(start, stop) for start, stop in itertools.pairwise(ends)]
        ties = tied.find([{s.names_in_whole[p.name]: p.size for p in s.layout.parameters} for s in stages])
        if ties:
            held = f"{ties[0].name}, which stages {' and '.join(map(str, ties[0].stages))} hold"
            return f"model: expected parameters of one stage each, got {held}: stages take their steps apart"
        cut = [p.name for stage in stages for p in stage.layout.parameters if p.shape != p.global_shape]
        if device == "cuda" and cut:
            return f"device: expected cpu with layers that are cut by tensor, got cuda and a part of {cut[0]}"
    return None
