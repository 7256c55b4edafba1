"""Where a run cuts its model into stages: one decision, for the run itself and for what is said of it before."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from psgd.nn.stage import Stage
from psgd.parallel.cuts.measure import measure
from psgd.parallel.cuts.partition import Cuts, LayerCost, check_cuts, partition
from psgd.parallel.options import AUTO, layers, microbatches_of
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.schedule import Schedule

Timed = Callable[[int, int], list[LayerCost]]
"""Of so many samples, and so many vectors of an update rule, to what each layer costs."""
INTERLEAVED = 2
"""Stages of a rank where a schedule has several, and the cuts are measured."""


@dataclass(frozen=True)
class Decision:
    """A pipeline as a run's options wish it.

    Attributes:
        ranks: of the pipeline.
        batch: samples of a step, of one copy of the model.
        parts: microbatches that were asked for, or None.
        name: of the schedule, or None.
        cut: the layers with which stages begin, as text, or None: they are measured.
    """

    ranks: int
    batch: int
    parts: int | None = None
    name: str | None = None
    cut: str | None = None

    @property
    def schedule(self) -> str:
        """The schedule's name, given or not."""
        return self.name or "1f1b"

    @property
    def microbatches(self) -> int:
        """Into how many parts a batch is cut."""
        return min(self.batch, self.parts or microbatches_of(self.schedule, self.ranks))

    @property
    def size(self) -> int:
        """Samples of a microbatch."""
        return -(-self.batch // self.microbatches)

    def cuts(
        self,
        model: Stage,
        state_vectors: int,
        memory: int | None = None,
        timed: Timed | None = None,
        xp: Any = np,
    ) -> Cuts:
        """Where stages begin: as given, or by layers that are measured here.

        Args:
            model: the whole.
            state_vectors: that the update rule keeps.
            memory: bytes of a rank, for its stages together; None is any number.
            timed: measures the layers of a model that is another library's.
            xp: `numpy` or `cupy`, where layers are measured.

        Raises:
            UsageError: layers that cannot be those, or no cut fits into the memory.
        """
        given, each = layers(self.cut or AUTO), self._stages_each
        if given is not None:
            return check_cuts(given, len(model.layers), self.ranks * each)
        if self.ranks * each == 1:
            return ()
        if timed is not None:
            costs = timed(self.size, state_vectors)
        else:
            costs = measure(model, xp.zeros((self.size, *model.input_shape), model.dtype), state_vectors)
        limits = catalog.make(self.schedule, self.ranks, self._following, each).in_flight_limit
        return partition(costs, self.ranks * each, None if memory is None else memory // each, limits * each)

    def even(self, count: int) -> Cuts:
        """Where stages begin if so many layers take equally long; empty where the cuts are given, or there are none."""
        stages = self.ranks * self._stages_each
        return () if layers(self.cut or AUTO) is not None else partition([LayerCost(1.0)] * count, stages)

    @property
    def _stages_each(self) -> int:
        given = layers(self.cut or AUTO)
        if not catalog.SCHEDULES[self.schedule].chunks:
            return 1
        return INTERLEAVED if given is None else max(1, (len(given) + 1) // self.ranks)

    @property
    def _following(self) -> int:
        """Microbatches of a schedule that shows how many are under way: without flushes batches follow each other."""
        return self.microbatches * (1 if catalog.SCHEDULES[self.schedule].flushes else self.ranks)

    def plan(self, cuts: Cuts) -> Schedule:
        """The schedule over stages that are cut so: of a batch, without flushes of so many as fill the pipeline."""
        return catalog.make(self.schedule, self.ranks, self._following, (len(cuts) + 1) // self.ranks)
