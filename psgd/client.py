"""What a training loop holds: parameters to read, gradients to fill, and `step()`."""

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.metrics import RunMetrics
from psgd.shard import Shard
from psgd.wire import FORMAT, Header, Kind
from psgd.worker_transport import MpiWorkerTransport

Vector = NDArray[np.floating]


_PUSH = int(Kind.PUSH)


class Client(Protocol):
    """The worker interface that every strategy meets.

    Attributes:
        params: 1-D parameters; overwritten by `step`.
        grads: 1-D gradient of the mean loss over the batch, for the caller to fill.
        version: groups applied to `params`.
        waited_s: seconds spent in `step`.
        stop: the server asks to stop early (a target was reached).
        bytes_sent, bytes_received: of this worker, where it counts them itself; whole when it has finished.
    """

    params: Vector
    grads: Vector
    version: int
    waited_s: float
    stop: bool
    bytes_sent: int
    bytes_received: int

    def start(self) -> None:
        """Gets the first parameters. Blocks."""

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """See `psgd.connection.Connection.overlap`."""

    def step(self, samples: int, loss: float) -> None:
        """Pushes `grads` and pulls `params`. Blocks until this worker may go on."""

    def report(self, accuracy: float, loss: float) -> None:
        """Tells server 0 of an evaluation. Does not block for long."""

    def finish(self) -> None:
        """No more pushes; returns with the final parameters once all workers are done. Blocks."""


class MpiClient:
    """A worker with servers on other ranks. Implements `Client`."""

    def __init__(self, transport: MpiWorkerTransport, params: Vector, grads: Vector, first: bool) -> None:
        self.params, self.grads = params, grads
        self.version = 0
        self.waited_s = 0.0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._transport = transport
        self._first = first
        self._pushes = 0
        self._drawn = 0
        self._began = time.perf_counter()

    def start(self) -> None:
        """See `Client`."""
        if self._first:
            self.grads[:] = self.params  # the first push is where everyone starts
        self._transport.exchange(Kind.INIT if self._first else Kind.PULL, (0, 0, 0, 0, 0, 0, 0.0, 0.0), self._first)
        self.grads[:] = 0
        self._began = time.perf_counter()

    def overlap(self, samples: int) -> None:
        """See `Client`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Client`."""
        start = time.perf_counter()
        self._drawn += samples
        self._pushes += 1
        fields = (self._pushes, self._pushes - 1, self.version, samples, self._drawn, 0, loss, 0.0)
        answer = self._transport.exchange(_PUSH, fields, samples > 0)
        self.version = answer.version
        self.stop = answer.extra != 0
        self.waited_s += time.perf_counter() - start

    def report(self, accuracy: float, loss: float) -> None:
        """See `Client`."""
        fields = (self._pushes, self._pushes, self.version, 0, self._drawn, 0, accuracy, loss)
        self._transport.tell(Kind.REPORT, fields, servers=1)

    def finish(self) -> None:
        """See `Client`."""
        computed = time.perf_counter() - self._began - self.waited_s
        fields = (self._pushes, self._pushes, self.version, 0, self._drawn, 0, self.waited_s, computed)
        self.version = self._transport.exchange(Kind.DONE, fields, False).version
        self.bytes_sent, self.bytes_received = self._transport.bytes_sent, self._transport.bytes_received


class LocalClient:
    """A single rank: the same step, taken here. Implements `Client`."""

    def __init__(self, shard: Shard, grads: Vector, metrics: RunMetrics) -> None:
        self.params, self.grads = shard.params, grads
        self.version = 0
        self.waited_s = 0.0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._shard = shard
        self._metrics = metrics
        self._parts = [grads[r.start : r.stop] for r in shard.ranges]
        self._pushes = 0

    def start(self) -> None:
        """See `Client`."""
        self._metrics.restart()

    def overlap(self, samples: int) -> None:
        """See `Client`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Client`."""
        shard = self._shard
        self._pushes += 1
        header = Header(
            FORMAT,
            0,
            Kind.PUSH,
            0,
            0,
            0,
            self._pushes,
            self._pushes - 1,
            shard.version,
            samples,
            0,
            0,
            loss,
            0.0,
        )
        if samples:
            self._metrics.applied(header, shard.version)
        shard.apply(((0, samples, 1.0),) if samples else (), self._fetch, _nothing, _nothing)
        self._metrics.progress(shard.samples, shard.version, shard.lr)
        self.version = shard.version

    def _fetch(self, worker: int, segment: int) -> Vector:
        return self._parts[segment]

    def report(self, accuracy: float, loss: float) -> None:
        """See `Client`."""
        position = self._shard.samples
        self._metrics.report(
            Header(FORMAT, 0, Kind.REPORT, 0, 0, 0, self._pushes, 0, 0, 0, position, 0, accuracy, loss)
        )
        self.stop = self._metrics.stop

    def finish(self) -> None:
        """See `Client`."""


def _nothing(segment: int) -> None:
    pass
