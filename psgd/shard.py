"""One server's range of the parameters: sums a group's gradients and takes the optimizer's step.

A group makes one step on the weighted mean of its gradients,
sum(weight * samples * gradient) / sum(weight * samples), summed in the order of the group. The work streams
through segments, so that receiving, updating and replying overlap and no second copy of the shard is needed (one
is, with clipping: the norm must be known before the first element moves).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.split import segments
from psgd.kernels import accumulate
from psgd.rules import Rule
from psgd.schedules import Schedule

Vector = NDArray[np.floating]


class Contribution(NamedTuple):
    """A gradient that takes part in a step.

    Attributes:
        worker: where `fetch` gets its data.
        samples: samples behind the mean gradient; with 0 no data is fetched.
        weight: multiplies `samples` in the mean.
    """

    worker: int
    samples: int
    weight: float = 1.0


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
        self._params = [params[r.start : r.stop] for r in self.ranges]
        self._state = [tuple(s[r.start : r.stop] for s in self.state) for r in self.ranges]
        self._sum = np.empty(params.size if clip_norm else min(segment, params.size), params.dtype)
        whole = bool(clip_norm)
        self._sums = [self._sum[r.start : r.stop] if whole else self._sum[: len(r)] for r in self.ranges]
        self._compile()

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
        group: Sequence[Contribution],
        fetch: Callable[[int, int], Vector],
        settle: Callable[[int], None],
        emit: Callable[[int], None],
    ) -> None:
        """Takes one step and adds 1 to the version; a group of 0 samples only emits.

        Args:
            group: contributions in summing order.
            fetch: `fetch(worker, segment)` gives that part of the worker's gradient; the view may be reused at the
                next fetch from the same worker. Called for each worker in segment order. May block.
            settle: `settle(segment)` returns once nobody reads the segment any more. May block.
            emit: `emit(segment)` is told that the segment has its final values of this version.
        """
        members = [c for c in group if c.samples]
        total = sum(c.samples * c.weight for c in members)
        self.lr = self.schedule(self.samples)
        if not members:
            for index in range(len(self.ranges)):
                emit(index)
            return
        self.samples += sum(c.samples for c in members)
        self.version += 1
        single = len(members) == 1
        scale = self._factor * (members[0].weight if single else 1.0 / total)
        if self._clip:
            for index, out in enumerate(self._sums):
                self._gather(members, index, fetch, out)
            norm = scale * np.sqrt(self._sum_over_shards(accumulate.sum_of_squares(self._sum)))
            if norm > self._clip:
                scale *= self._clip / norm
        for index, out in enumerate(self._sums):
            if self._clip:
                grad = out
            elif single:
                grad = fetch(members[0].worker, index)
            else:
                grad = self._gather(members, index, fetch, out)
            settle(index)
            self.rule.update(self._params[index], grad, self._state[index], self.lr, scale, self.version)
            emit(index)

    def _gather(
        self, members: Sequence[Contribution], index: int, fetch: Callable[[int, int], Vector], out: Vector
    ) -> Vector:
        if len(members) == 1:
            out[:] = fetch(members[0].worker, index)
            return out
        for position, member in enumerate(members):
            grad = fetch(member.worker, index)
            weight = member.samples * member.weight
            if position == 0:
                accumulate.weigh(out, grad, weight)
            else:
                accumulate.add_weighted(out, grad, weight)
        return out
