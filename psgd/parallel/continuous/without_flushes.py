"""PipeDream: a pipeline that is never empty, because its ranks take steps without waiting for each other.

`psgd.parallel.schedules.pipedream` says what is stale then, and which weights each pass uses. That order is fixed: two
runs have the same bits, and there is nothing to record or to replay.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.model import Model
from psgd.optim.optimizer import Optimizer
from psgd.parallel.continuous.stash import Stash
from psgd.parallel.microbatches import Batch
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import pipedream
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.stages import tied
from psgd.runtime.agreement import agree

Batches = Callable[[int], tuple[Array, Array]]
"""From the number of a step of this call to its samples and labels, which stay unchanged until its step is taken."""

Draws = Callable[[int], tuple[int, Array]]
"""From the number of a step to the key and the samples' numbers by which layers draw: see `Context.draw`."""

Combine = Callable[[Array], None]
"""Changes a gradient in place."""


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
    ) -> None:
        ranks = comm.Get_size()
        agree(
            comm,
            "pipedream",
            {"two_versions": two_versions},
            _complaint(ranks, model, cuts, batch, microbatches, two_versions),
        )
        # As many microbatches as can be in flight: links get room for them.
        super().__init__(
            comm, model, cuts, "1f1b", batch=batch * ranks, microbatches=microbatches * ranks, crowded=crowded
        )
        self.versions_most = 1
        self._samples = batch
        self._each = -(-batch // self.microbatch)
        self._two_versions = two_versions
        self._position = 0

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
            return self._train(optimizer, samples, batches, draws, combine)

    def _train(
        self, optimizer: Optimizer, samples: int, batches: Batches, draws: Draws | None, combine: Combine | None
    ) -> float:
        if samples < 1:
            raise UsageError(f"train: samples: expected 1 or more, got {samples}")
        if optimizer.clips:
            raise UsageError(
                "train: expected an optimizer with clip_norm=0: no rank ever has the norm of a whole gradient"
            )
        if optimizer.params.shape != (self.layout.size,):
            raise UsageError(
                f"train: optimizer: expected {self.layout.size} parameters, got shape {optimizer.params.shape}"
            )
        whole, rest = divmod(samples, self._samples)
        microbatches = whole * self._each + -(-rest // self.microbatch)
        program = pipedream.program(self._rank, self._ranks, microbatches, self._each)
        stash = Stash(optimizer.params, pipedream.versions(program, self._each, self._two_versions))
        grads = np.zeros_like(optimizer.params)
        ends = self._rank in (0, self._told.source)
        executor, chunk = self._executor, self._chunks[0]
        steps: dict[int, _StepBatch] = {}
        loss = 0.0
        executor.begin(self._each, (None,))
        for each in program:
            step = each.microbatch // self._each
            if each.kind != "U":
                if step not in steps:
                    n = min(self._samples, samples - step * self._samples)
                    steps[step] = self._step_batch(step, n, batches if ends else None, draws)
                self.bind(stash.weights(each.microbatch), grads)
                executor.one(each, steps[step])
                continue
            batch = steps.pop(step)
            loss += sum(chunk.losses[k] for k in sorted(chunk.losses)) * batch.samples
            if combine is not None:
                combine(grads)
            self._step(each, optimizer, stash, grads)
            self._position += batch.samples
            executor.begin(self._each, (None,))
        self.versions_most = max(self.versions_most, stash.most)
        self.bind(optimizer.params, grads)
        if self._rank == self._told.source:
            self._told.tell(loss / samples, 0.0)
        executor.wait(self._told.known)
        return self._told.values[0]

    def _step_batch(self, step: int, n: int, batches: Batches | None, draws: Draws | None) -> _StepBatch:
        x, y = (None, None) if batches is None else batches(step)
        key, numbers = (None, None) if draws is None else draws(step)
        if numbers is not None and len(numbers) != n:
            raise UsageError(f"train: step {step}: draws: expected the numbers of {n} samples, got {len(numbers)}")
        taken = self._taken(f"train: step {step}", n, x, y, None)
        return _StepBatch(n, taken.size, x, y, key, numbers, first=step * self._each)

    def _step(self, each: Instruction, optimizer: Optimizer, stash: Stash, grads: Array) -> None:
        start = time.perf_counter()
        stash.keep(each.microbatch)
        optimizer.take(grads, 1.0, self._position)
        self._executor.done(each, start, time.perf_counter())


def _complaint(
    ranks: int, model: Model, cuts: Sequence[int], batch: int, microbatches: int, two_versions: bool
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
    return None
