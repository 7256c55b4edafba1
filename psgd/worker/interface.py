"""What a training loop holds: parameters to read, gradients to fill, and `step()`."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint import vectors
from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.metrics.run_metrics import RunMetrics
from psgd.server.shard import Shard
from psgd.server.wire import ASK, FORMAT, LEAVE, RELAY, Header, Kind
from psgd.server.worker_transport import MpiWorkerTransport

Vector = NDArray[np.floating]


_PUSH = int(Kind.PUSH)


class Client(Protocol):
    """The worker interface that every strategy meets.

    Attributes:
        params: 1-D parameters; overwritten by `step`.
        grads: 1-D gradient of the mean loss over the batch, for the caller to fill.
        version: groups applied to `params`.
        waited_s: seconds spent in `step`.
        stop: the server asks to stop early (a target was reached, or all stop after a cut).
        saving: the newest `step` ended at a cut: all ranks stand at the same point of the run, `state()` says it all.
        leaving: that cut was asked for with `stop`; `stop` is true then too.
        cut: what the newest cut is called, the same on all ranks: a number of steps that rises from cut to cut.
        on_cut: set by the connection before `start`. `finish` calls it where a cut is made while it waits.
        bytes_sent, bytes_received: of this worker, where it counts them itself; whole when it has finished.
    """

    params: Vector
    grads: Vector
    version: int
    waited_s: float
    stop: bool
    saving: bool
    leaving: bool
    cut: int
    on_cut: Callable[[], None]
    bytes_sent: int
    bytes_received: int

    def start(self) -> None:
        """Gets the first parameters, or after `restore` goes on from where it was. Blocks."""

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """See `psgd.connection.Connection.overlap`."""

    def step(self, samples: int, loss: float) -> None:
        """Pushes `grads` and pulls `params`. Blocks until this worker may go on."""

    def report(self, accuracy: float, loss: float) -> None:
        """Tells server 0 of an evaluation. Does not block for long."""

    def finish(self) -> None:
        """No more pushes; returns with the final parameters once all workers are done. Blocks."""

    def ask_save(self, stop: bool) -> None:
        """This rank wants a cut soon, and with `stop` that all stop after it. Asking twice is asking once."""

    def save_every(self, steps: int) -> None:
        """Asks for a cut after every so many steps of the whole run; of each worker where they do not keep pace."""

    def state(self) -> State:
        """What this rank has to save at a cut. Views: to be copied before the next step.

        Facts have `version` and `samples`, those applied by all workers together; on worker 0, where not all workers
        save, `savers`: who does.
        """

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """Takes up what was saved, before `start`.

        Args:
            state: this worker's own; None where the number of workers is another, or where it has saved none.
            others: all of that cut, those of servers first.

        Returns:
            A line for each thing that could not be kept.
        """


class MpiClient:
    """A worker with servers on other ranks. Implements `Client`."""

    def __init__(self, transport: MpiWorkerTransport, params: Vector, grads: Vector, first: bool) -> None:
        self.params, self.grads = params, grads
        self.version = 0
        self.waited_s = 0.0
        self.stop = self.saving = self.leaving = False
        self.cut = 0
        self.on_cut = _nobody_saves
        self.bytes_sent = self.bytes_received = 0
        self._transport = transport
        self._first = first
        self._restored = False
        self._pushes = 0
        self._drawn = 0
        self._cuts = self._asked = 0  # cuts so far, and what is wanted: `psgd.checkpoint.requests.SAVE`
        self._began = time.perf_counter()
        self._computed_s = 0.0  # before the cut that the run goes on from

    def start(self) -> None:
        """See `Client`."""
        if self._restored:
            self._pull()
            self._began = time.perf_counter() - self.waited_s - self._computed_s
            return
        if self._first:
            self.grads[:] = self.params  # the first push is where everyone starts
        self._transport.exchange(Kind.INIT if self._first else Kind.PULL, (0, 0, 0, 0, 0, 0, 0.0, 0.0), self._first)
        self.grads[:] = 0
        self._began = time.perf_counter()

    def _pull(self) -> None:
        """Gets the answer to the push that was the last before the cut."""
        fields = (self._pushes, self._pushes, 0, 0, self._drawn, 0, 0.0, 0.0)
        self.version = self._transport.exchange(Kind.PULL, fields, False).version

    def overlap(self, samples: int) -> None:
        """See `Client`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Client`."""
        start = time.perf_counter()
        self._drawn += samples
        self._pushes += 1
        fields = (self._pushes, self._pushes - 1, self.version, samples, self._drawn, 0, loss, ASK * self._asked)
        self._hear(self._transport.exchange(_PUSH, fields, samples > 0))
        self.waited_s += time.perf_counter() - start

    def _hear(self, answer: Header) -> None:
        """Takes in what the answer to a push says."""
        self.version = answer.version
        told = self._transport.told
        self.stop = told % RELAY != 0
        self.saving = answer.push > self._cuts
        if self.saving:
            self._cuts, self.cut, self.leaving = answer.push, answer.clock, told % RELAY >= LEAVE
            if self.leaving or self._asked < SAVE_AND_STOP:
                self._asked = 0
        elif told >= RELAY:
            self._asked = max(self._asked, min(SAVE_AND_STOP, told // RELAY))

    def ask_save(self, stop: bool) -> None:
        """See `Client`."""
        self._asked = max(self._asked, SAVE_AND_STOP if stop else SAVE)

    def save_every(self, steps: int) -> None:
        """See `Client`. It is the servers who count (`psgd.server.checkpoint_points`)."""

    def state(self) -> State:
        """See `Client`."""
        computed = time.perf_counter() - self._began - self.waited_s
        counts = {"pushes": self._pushes, "drawn": self._drawn, "waited_s": self.waited_s, "computed_s": computed}
        sent = {"bytes_sent": self._transport.bytes_sent, "bytes_received": self._transport.bytes_received}
        return State({}, {**counts, **sent})

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Client`."""
        self._restored = True
        log = others[0].facts["log"]
        if state is not None:
            told = state.facts
            self._pushes, self._drawn, self.waited_s = told["pushes"], told["drawn"], told["waited_s"]
            self._computed_s = told["computed_s"]
            self._transport.bytes_sent, self._transport.bytes_received = told["bytes_sent"], told["bytes_received"]
        elif len(log["clocks"]) == self._transport.workers:  # it was done
            index = self._transport.worker
            self._pushes, self._drawn = log["clocks"][index], log["positions"][index]
        return []

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
        self.stop = self.saving = self.leaving = False
        self.cut = 0
        self.on_cut = _nobody_saves
        self._asked = self._every = self._next = 0
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
        self.saving = self._asked > 0 or (self._every > 0 and self.version >= self._next)
        if self.saving:
            self.cut, self.leaving = self.version, self._asked == SAVE_AND_STOP
            self.stop = self.stop or self.leaving
            self._asked = 0
            self._plan()

    def _plan(self) -> None:
        if self._every:
            self._next = (self.version // self._every + 1) * self._every

    def ask_save(self, stop: bool) -> None:
        """See `Client`."""
        self._asked = max(self._asked, SAVE_AND_STOP if stop else SAVE)

    def save_every(self, steps: int) -> None:
        """See `Client`."""
        self._every = steps
        self._plan()

    def state(self) -> State:
        """See `Client`."""
        state, size = self._shard.saved(), self.params.size
        log = {"clocks": [self._pushes], "positions": [self._shard.samples]}
        state.facts.update(range=[0, size, size], cut=sorted(state.tensors), log=log)
        return state

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Client`."""
        parts = [state] if state is not None else [other for other in others if vectors.is_cut(other)]
        if not parts:
            return self._take_from_peers(list(others))
        self._shard.restore(vectors.assemble(parts), parts[0].facts)
        self.version, self._pushes = self._shard.version, parts[0].facts["log"]["clocks"][0]
        self._plan()
        return []

    def _take_from_peers(self, others: Sequence[State]) -> list[str]:
        """What several workers without a server have saved."""
        arrays = {f"state{i}": array for i, array in enumerate(self._shard.state)}
        kept = keeping.mean(arrays, others)
        facts = {name: keeping.common(others, name) for name in ("version", "samples")}
        self._shard.restore({"params": vectors.weights(others), **arrays}, {**facts, "open": 0})
        self.version = self._shard.version
        self._plan()
        return ["the workers' optimizer's state: its mean" if kept else "the optimizer's state: begins anew"]

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


def _nobody_saves() -> None:
    pass
