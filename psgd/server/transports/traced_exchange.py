"""When a worker pushes, waits for the servers' answer, and pulls: for a trace, around its exchanges."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from psgd.collectives.mpi.wait import Waiter
from psgd.metrics.trace.event_ring import KINDS, EventRing
from psgd.server.transports.worker_transport import MpiWorkerTransport

_PUSH, _WAIT, _PULL = (KINDS.index(kind) for kind in ("push", "wait", "pull"))


class TracedExchanges(NamedTuple):
    """A worker's exchanges, each as three spans.

    It pushes until it begins to wait for an answer's header, and pulls from when the last header has come. While it is
    traced it does not test for the answer before it waits: the moment between would not show.
    """

    transport: MpiWorkerTransport

    def attach(self, ring: EventRing) -> None:
        """From now on, its events go to the ring."""
        transport: Any = self.transport
        waiter, exchange, clock, add = _NotingWaiter(transport._waiter), transport.exchange, time.perf_counter, ring.add
        transport._waiter, transport._eager = waiter, range(0)

        def traced(*arguments: Any, **named: Any) -> Any:
            waiter.began = waiter.ended = 0.0
            start = clock()
            try:
                return exchange(*arguments, **named)
            finally:  # of one that fails, what it was doing is what there is to see
                stop = clock()
                began = waiter.began or stop
                ended = waiter.ended or stop
                add(_PUSH, start, began)
                add(_WAIT, began, ended)
                add(_PULL, ended, stop)

        transport.exchange = traced


class _NotingWaiter:
    """A waiter that notes when its first wait began, and its last one ended."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self.flowing, self.soon, self.crowded = waiter.flowing, waiter.soon, waiter.crowded
        self.began = self.ended = 0.0

    def until(self, test: Callable[[], Any], patience_s: float | None = None, yields: bool = False) -> Any:
        """Waits."""
        self.began = self.began or time.perf_counter()
        try:
            return self._waiter.until(test, patience_s, yields)
        finally:
            self.ended = time.perf_counter()
