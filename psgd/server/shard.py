"""One server's range of the parameters: sums a group's gradients and takes the optimizer's step.

A group makes one step on the mean of its gradients, sum(weight * samples * gradient) / sum(samples), summed in the
order of the group. The work streams through segments, so that receiving, updating and replying overlap and no second
copy of the shard is needed (one is, with clipping: the norm must be known before the first element moves; and where
groups stay open: their sum lies there meanwhile).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore
from psgd.checkpoint.state import State
from psgd.collectives.mpi.split import segments
from psgd.kernels import accumulate
from psgd.kernels.exact_squares import Limbs
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.runtime.jsonable import JSON, whole

Vector = NDArray[np.floating]
Fetch = Callable[[int, int], Vector]

WeightedGradient = tuple[int, int, float]
"""Worker (where `fetch` gets its data), samples behind its mean gradient (at least 1), weight."""


class Shard:
    """Parameters, optimizer state and progress of one server.

    Args:
        params: 1-D float array, updated in place; it stays the caller's.
        options: what the optimizer does; the learning rate is by samples applied so far.
        segment: elements in a segment.
        sum_over_shards, start: see `psgd.optim.optimizer.Optimizer`.

    Attributes:
        params, optimizer: of this shard.
        samples: applied so far.
        open_samples: in the sum of a group that is open, 0 where none is.
        ranges: the segments.
    """

    def __init__(
        self,
        params: Vector,
        options: OptimizerOptions,
        *,
        segment: int,
        sum_over_shards: Callable[[Any], Any] = lambda alone: alone,
        start: int = 0,
    ) -> None:
        self.params = params
        self.optimizer = Optimizer(params, options, sum_over_shards, start)
        self.samples = 0
        self.ranges = segments(params.size, segment)
        self._pieces = [
            (index, params[r.start : r.stop], tuple(s[r.start : r.stop] for s in self.optimizer.state))
            for index, r in enumerate(self.ranges)
        ]
        self.open_samples = 0
        self._make_sums(whole=self.optimizer.clips)
        none = params[:0]  # compiles now, so that no step waits for it
        accumulate.weigh(none, none, 1.0)
        accumulate.add_weighted(none, none, 1.0)

    @property
    def version(self) -> int:
        """Steps taken."""
        return self.optimizer.version

    @property
    def lr(self) -> float:
        """Rate of the newest step."""
        return self.optimizer.lr

    def _make_sums(self, whole: bool) -> None:
        """Makes the memory for a group's sum: of the shard, or of one segment."""
        longest = max((len(part) for part in self.ranges), default=0)
        self._whole = whole
        self._sum = np.empty_like(self.params, shape=self.params.size if whole else longest)
        self._sums = [self._sum[r.start : r.stop] if whole else self._sum[: len(r)] for r in self.ranges]

    def apply(
        self,
        group: Sequence[WeightedGradient],
        fetch: Fetch,
        settle: Callable[[int], None],
        emit: Callable[[int], None],
        digits: Limbs | None = None,
    ) -> None:
        """Takes one step, with what was added before, and adds 1 to the version; without samples it only emits.

        Args:
            group: contributions in summing order.
            fetch: `fetch(worker, segment)` gives that part of the worker's gradient; the view may be reused at the
                next fetch from the same worker. Called for each worker in segment order. May block.
            settle: `settle(segment)` returns once nobody reads the segment any more. May block.
            emit: `emit(segment)` is called when the segment has its final values of this version.
            digits: of all shards, with clipping, where `gather` was called already; None is that it was not.
        """
        optimizer, total = self.optimizer, self.open_samples
        for _, samples, _ in group:
            total += samples
        if not total:
            for index in range(len(self.ranges)):
                emit(index)
            return
        single = len(group) == 1 and not self.open_samples
        scale = optimizer.options.reduction_factor
        if single:  # the mean of one is that one: its samples are neither multiplied in nor divided out
            worker, _, weight = group[0]
            scale *= weight
        else:
            scale /= total
        clips = optimizer.clips
        if clips:
            if digits is None:
                self._gather_all(group, fetch)
                scale = optimizer.clipped(self._sum, scale)
            else:
                scale = optimizer.shortened(digits, scale)
        optimizer.begin(self.samples)
        self.samples += total
        # Segment by segment: while this one is added up and updated, the next one comes in and the one before goes
        # out. Only the update waits for earlier replies that still read the segment.
        update, lr, version = optimizer.update, optimizer.lr, optimizer.version
        for index, params, state in self._pieces:
            if clips:
                grad = self._sums[index]
            elif single:
                grad = fetch(worker, index)
            else:
                grad = self._gather(group, index, fetch)
            settle(index)
            update(params, grad, state, lr, scale, version)
            emit(index)
        self.open_samples = 0

    def add(self, contribution: WeightedGradient, fetch: Fetch) -> None:
        """Adds a contribution to the group that the next `apply` closes. Its samples count when that happens."""
        if not self._whole:
            self._make_sums(whole=True)
        for index in range(len(self.ranges)):
            self._gather((contribution,), index, fetch)
        self.open_samples += contribution[1]

    def saved(self) -> State:
        """All that a checkpoint needs; views, each of the shard's elements."""
        tensors = {"params": self.params, **self.optimizer.arrays}
        if self.open_samples:
            tensors["open"] = self._sum
        facts: dict[str, JSON] = {"version": self.version, "samples": self.samples, "open": self.open_samples}
        if (settings := self.optimizer.options.rule.settings) is not None:
            facts["skipped"] = settings.skipped
        return State(tensors, facts)

    def restore(self, tensors: Mapping[str, Vector], facts: Mapping[str, JSON]) -> None:
        """Resumes from what `saved` gave: the tensors' elements of this shard, and the facts."""
        optimizer, state = self.optimizer, State(dict(tensors))
        restore.put_back({"params": self.params, **optimizer.arrays}, state)
        optimizer.version, self.samples = whole(facts, "version"), whole(facts, "samples")
        self.open_samples = whole(facts, "open")
        if (settings := optimizer.options.rule.settings) is not None and "skipped" in facts:
            settings.skipped = whole(facts, "skipped")
        optimizer.lr = optimizer.options.schedule(self.samples)
        if self.open_samples:
            if not self._whole:
                self._make_sums(whole=True)
            restore.put_back({"open": self._sum}, state)

    def gather(self, group: Sequence[WeightedGradient], fetch: Fetch) -> Limbs:
        """With clipping, sums a group's gradients ahead of `apply`, which gets the digits of all shards.

        Returns:
            The digits of this shard's sum of squares (`psgd.kernels.exact_squares`).
        """
        self._gather_all(group, fetch)
        return self.optimizer.digits(self._sum)

    def _gather_all(self, group: Sequence[WeightedGradient], fetch: Fetch) -> None:
        """Adds up all segments."""
        for index in range(len(self.ranges)):
            if len(group) == 1 and not self.open_samples:
                self._sums[index][:] = fetch(group[0][0], index)
            else:
                self._gather(group, index, fetch)

    def _gather(self, group: Sequence[WeightedGradient], index: int, fetch: Fetch) -> Vector:
        """Adds up one segment. The first gradient overwrites what is there, unless it is the sum of an open group."""
        out = self._sums[index]
        add = accumulate.add_weighted if self.open_samples else accumulate.weigh
        for worker, samples, weight in group:
            add(out, fetch(worker, index), samples * weight)
            add = accumulate.add_weighted
        return out
