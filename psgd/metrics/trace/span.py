"""What a trace times: methods of single objects, replaced on these objects while a run is traced.

Where nothing is traced, nothing is replaced, and no code on the hot path asks whether it is.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from psgd.metrics.trace.event_ring import KINDS, EventRing


class Traceable(Protocol):
    """What can be timed."""

    def attach(self, ring: EventRing) -> None:
        """From now on, its events go to the ring."""


class Span(NamedTuple):
    """A method of one object.

    Attributes:
        owner: the object.
        method: its name.
        kind: one of `psgd.metrics.trace.event_ring.KINDS`.
        track: 0 for the main thread, 1 for the one that writes checkpoints.
    """

    owner: Any
    method: str
    kind: str
    track: int = 0

    def attach(self, ring: EventRing) -> None:
        """Replaces the method, on this object alone, by one that times itself; once."""
        call = getattr(self.owner, self.method)
        if getattr(call, "ring", None) is ring:
            return
        setattr(self.owner, self.method, timed(ring, KINDS.index(self.kind), call, self.track))


def timed(ring: EventRing, kind: int, call: Callable[..., Any], track: int = 0) -> Callable[..., Any]:
    """The function, and an event for each of its calls, those that raise too."""
    add, clock = ring.add, time.perf_counter

    def traced(*arguments: Any, **named: Any) -> Any:
        start = clock()
        try:
            return call(*arguments, **named)
        finally:
            add(kind, start, clock(), track)

    vars(traced)["ring"] = ring  # it is known by that
    return traced


def attach(ring: EventRing, spans: Iterable[Traceable]) -> None:
    """Attaches all."""
    for each in spans:
        each.attach(ring)
