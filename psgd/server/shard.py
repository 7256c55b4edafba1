"""One server's range of the parameters: sums a group's gradients and takes the optimizer's step.

A group makes one step on the mean of its gradients, sum(weight * samples * gradient) / sum(samples), summed in the
order of the group. The work streams through segments, so that receiving, updating and replying overlap and no second
copy of the shard is needed (one is, with clipping: the norm must be known before the first element moves; and where
groups stay open: their sum lies there meanwhile).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import State
from psgd.collectives.mpi.split import segments
from psgd.kernels import accumulate
from psgd.optim.rules import Rule
from psgd.optim.schedules import Schedule
from psgd.runtime.device_vectors import fill
from psgd.runtime.jsonable import JSON

Vector = NDArray[np.floating]


WeightedGradient = tuple[int, int, float]
"""Worker (where `fetch` gets its data), samples behind its mean gradient (at least 1), weight."""


class Shard:
    """Parameters, optimizer state and progress of one server.

    Args:
        params: 1-D float array, updated in place; it stays the caller's.
        rule: the update rule.
        schedule: the rate by samples applied so far.
        segment: elements in a segment.
        clip_norm: largest norm of the mean gradient over all shards; 0 is off.
        reduction_factor: what the mean gradient is multiplied by (1, or the workers with `--reduction sum`).
        sum_over_shards: adds a number over all servers, the same bits on each; used for the norm. Collective.
    """

    def __init__(
        self,
        params: Vector,
        rule: Rule,
        schedule: Schedule,
        *,
        segment: int,
        clip_norm: float = 0.0,
        reduction_factor: float = 1.0,
        sum_over_shards: Callable[[float], float] = float,
    ) -> None:
        self.params = params
        self.rule = rule
        self.schedule = schedule
        self.version = 0
        self.samples = 0
        self.lr = schedule(0)
        self.state = rule.init(params)
        self._clip = clip_norm
        self._factor = reduction_factor
        self._sum_over_shards = sum_over_shards
        self.ranges = segments(params.size, segment)
        self._pieces = [
            (index, params[r.start : r.stop], tuple(s[r.start : r.stop] for s in self.state))
            for index, r in enumerate(self.ranges)
        ]
        self._open = 0  # samples in the sum of a group that is open
        self._make_sums(whole=bool(clip_norm))
        self._compile()

    @property
    def is_open(self) -> bool:
        """Whether a group has contributions and waits for its step."""
        return self._open > 0

    def _make_sums(self, whole: bool) -> None:
        """Makes the memory for a group's sum: of the shard, or of one segment."""
        longest = max((len(part) for part in self.ranges), default=0)
        self._whole = whole
        self._sum = np.empty_like(self.params, shape=self.params.size if whole else longest)
        self._sums = [self._sum[r.start : r.stop] if whole else self._sum[: len(r)] for r in self.ranges]

    def _compile(self) -> None:
        """Compiles the kernels on empty arrays, so that no step waits for it."""
        none = self.params[:0]
        self.rule.update(none, none, tuple(s[:0] for s in self.state), 0.0, 1.0, 1)
        accumulate.weigh(none, none, 1.0)
        accumulate.add_weighted(none, none, 1.0)
        if self._clip:
            accumulate.sum_of_squares(none)

    def apply(
        self,
        group: Sequence[WeightedGradient],
        fetch: Callable[[int, int], Vector],
        settle: Callable[[int], None],
        emit: Callable[[int], None],
    ) -> None:
        """Takes one step, with what was added before, and adds 1 to the version; without samples it only emits.

        Args:
            group: contributions in summing order.
            fetch: `fetch(worker, segment)` gives that part of the worker's gradient; the view may be reused at the
                next fetch from the same worker. Called for each worker in segment order. May block.
            settle: `settle(segment)` returns once nobody reads the segment any more. May block.
            emit: `emit(segment)` is told that the segment has its final values of this version.
        """
        self.lr = lr = self.schedule(self.samples)
        total = self._open + sum(samples for _, samples, _ in group)
        if not total:
            for index in range(len(self.ranges)):
                emit(index)
            return
        self.version += 1
        self.samples += total
        single = len(group) == 1 and not self._open
        if single:
            worker, _, weight = group[0]
            scale = self._factor * weight
        else:
            scale = self._factor / total
        if self._clip:
            scale = self._clipped(group, scale, fetch)
        update, version = self.rule.update, self.version
        for index, params, state in self._pieces:
            if self._clip:
                grad = self._sums[index]
            elif single:
                grad = fetch(worker, index)
            else:
                grad = self._gather(group, index, fetch)
            settle(index)
            update(params, grad, state, lr, scale, version)
            emit(index)
        self._open = 0

    def add(self, contribution: WeightedGradient, fetch: Callable[[int, int], Vector]) -> None:
        """Adds a contribution to the group that the next `apply` closes. Its samples count when that happens."""
        if not self._whole:
            self._make_sums(whole=True)
        for index in range(len(self.ranges)):
            self._gather((contribution,), index, fetch)
        self._open += contribution[1]

    def saved(self) -> State:
        """All that a checkpoint needs; views, each of the shard's elements."""
        tensors = {"params": self.params, **{f"state{i}": array for i, array in enumerate(self.state)}}
        if self._open:
            tensors["open"] = self._sum
        return State(tensors, {"version": self.version, "samples": self.samples, "open": self._open})

    def restore(self, tensors: Mapping[str, Vector], facts: Mapping[str, JSON]) -> None:
        """Takes up what `saved` gave: the tensors' elements of this shard, and the facts."""
        fill(self.params, tensors["params"])
        for i, array in enumerate(self.state):
            fill(array, tensors[f"state{i}"])
        self.version, self.samples, self._open = facts["version"], facts["samples"], facts["open"]
        self.lr = self.schedule(self.samples)
        if self._open:
            if not self._whole:
                self._make_sums(whole=True)
            fill(self._sum, tensors["open"])

    def _clipped(self, group: Sequence[WeightedGradient], scale: float, fetch: Callable[[int, int], Vector]) -> float:
        """Sums the whole gradient and shrinks `scale` where its norm over all shards is too large."""
        for index in range(len(self.ranges)):
            if len(group) == 1 and not self._open:
                self._sums[index][:] = fetch(group[0][0], index)
            else:
                self._gather(group, index, fetch)
        norm = scale * math.sqrt(self._sum_over_shards(accumulate.sum_of_squares(self._sum)))
        return scale * self._clip / norm if norm > self._clip else scale

    def _gather(self, group: Sequence[WeightedGradient], index: int, fetch: Callable[[int, int], Vector]) -> Vector:
        out = self._sums[index]
        add = accumulate.add_weighted if self._open else accumulate.weigh
        for worker, samples, weight in group:
            add(out, fetch(worker, index), samples * weight)
            add = accumulate.add_weighted
        return out
