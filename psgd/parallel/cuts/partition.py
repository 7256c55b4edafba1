"""Layers cut into stages of a pipeline: the cut whose slowest stage is as fast as any cut can make it.

A pipeline is as fast as its slowest stage. Exact, by dynamic programming over (stage, layers so far): O(p L^2).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psgd.kernels.errors import UsageError

Cuts = tuple[int, ...]
"""Where stages 1 to p - 1 begin: (3, 5) are layers 0 to 2, 3 and 4, and all from 5 on."""


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs the stage that has it.

    Attributes:
        seconds: of a forward and a backward pass of one microbatch.
        held: bytes for as long as the run lasts: parameters, gradients, the optimizer's state.
        alive: bytes for each microbatch that waits for its backward pass.
    """

    seconds: float
    held: int = 0
    alive: int = 0


def partition(
    costs: Sequence[LayerCost], stages: int, memory: int | None = None, in_flight: Sequence[int] | None = None
) -> Cuts:
    """Returns where to cut so that the largest sum of seconds of a stage is least; no stage is empty.

    Of equally good cuts the earliest: the last stages get the most layers.

    Args:
        costs: of each layer, in order.
        stages: of the pipeline.
        memory: bytes that a stage may take; None is any number.
        in_flight: for each stage the most microbatches alive at once, as min(m, p - i) with 1F1B; None is 1.

    Raises:
        UsageError: more stages than layers, or no cut fits into the memory: the message says which would.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise UsageError(
            f"cut: expected 1 to {layers} stages for {layers} layers, as each stage needs one, got {stages}"
        )
    alive = [1] * stages if in_flight is None else list(in_flight)
    if len(alive) != stages:
        raise UsageError(f"cut: in_flight: expected a number for each of {stages} stages, got {len(alive)}")
    seconds = _sums([each.seconds for each in costs])
    held, kept = _sums([each.held for each in costs]), _sums([each.alive for each in costs])

    def needs(stage: int, start: int, stop: int) -> float:
        return held[stop] - held[start] + alive[stage] * (kept[stop] - kept[start])

    def takes(stage: int, start: int, stop: int) -> float:
        fits = memory is None or needs(stage, start, stop) <= memory
        return seconds[stop] - seconds[start] if fits else math.inf

    best, cuts = _least(layers, stages, takes)
    if best == math.inf:
        least, _ = _least(layers, stages, needs)
        raise UsageError(
            f"cut: no cut of {layers} layers into {stages} stages fits into {memory:,} bytes a rank: the best needs "
            f"{int(least):,}; expected more stages, more memory or smaller microbatches"
        )
    return cuts


def check_cuts(cuts: Sequence[int], layers: int, stages: int, where: str = "--cut") -> Cuts:
    """The cuts themselves, if they make that many stages of that many layers, none of them empty.

    Raises:
        UsageError: what was expected.
    """
    given = ",".join(map(str, cuts))
    if len(cuts) != stages - 1:
        raise UsageError(
            f"{where} {given}: expected {stages - 1} cut{'' if stages == 2 else 's'} for {stages} stages: the layers "
            f"with which all stages but the first begin; got {len(cuts)}"
        )
    ends = [0, *cuts, layers]
    if any(later <= earlier for earlier, later in itertools.pairwise(ends)):
        raise UsageError(
            f"{where} {given}: expected rising layers from 1 to {layers - 1}, the model has {layers}: each stage needs "
            "one"
        )
    return tuple(int(each) for each in cuts)


def _sums(values: Sequence[float]) -> list[float]:
    """Sums of the first 0, 1, ... values."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums


def _least(layers: int, stages: int, cost: Callable[[int, int, int], float]) -> tuple[float, Cuts]:
    """The least possible largest cost of a stage, and the first cuts that have it; infinite if none is finite."""
    nothing: tuple[float, Cuts] = (math.inf, ())
    best = [(0.0, nothing[1]), *[nothing] * layers]
    for stage in range(stages):
        following = [nothing]
        for stop in range(1, layers + 1):
            found = nothing
            for start in range(stage, stop):
                before, cuts = best[start]
                now = max(before, cost(stage, start, stop))
                if now < found[0]:
                    found = (now, (*cuts, start) if stage else ())
            following.append(found)
        best = following
    return best[layers]
