"""A pipeline's passes in a trace."""

from collections.abc import Callable
from typing import Protocol

from psgd.metrics.trace import passes
from psgd.metrics.trace.event_ring import KINDS, EventRing
from psgd.parallel.schedules.instruction import Instruction


class Observable(Protocol):
    """What runs a schedule: an `Executor`.

    Attributes:
        observer: told of each instruction, and when it began and ended by `time.perf_counter`.
    """

    observer: Callable[[Instruction, float, float], None] | None


class PassSpans:
    """What `Connection.trace_also` takes: from then on each pass of the executor is an event.

    Args:
        executor: of a pipeline on this rank.
    """

    def __init__(self, executor: Observable) -> None:
        self._executor = executor

    def attach(self, ring: EventRing) -> None:
        """From now on, its passes go to the ring."""
        add, indices = ring.add, {kind: KINDS.index(kind) for kind in passes.PASSES}

        def seen(instruction: Instruction, start: float, stop: float) -> None:
            number = passes.number(instruction.microbatch, instruction.chunk)
            add(indices[instruction.kind], start, stop, 0, number)

        self._executor.observer = seen
