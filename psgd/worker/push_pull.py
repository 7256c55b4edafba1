"""A worker whose servers are other ranks: it pushes its gradient to all of them and pulls the parameters."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.server.wire import ASK, LEAVE, RELAY, Header, MessageKind
from psgd.server.worker_transport import MpiWorkerTransport
from psgd.worker.base import WorkerBase
from psgd.worker.checkpoint_status import CheckpointStatus

Vector = NDArray[np.floating]

_PUSH = int(MessageKind.PUSH)


class PushPullWorker(WorkerBase):
    """A worker with servers on other ranks. Implements `Worker`."""

    def __init__(self, transport: MpiWorkerTransport, params: Vector, grads: Vector, first: bool) -> None:
        super().__init__(params, grads, transport.worker, CheckpointStatus())
        self._transport = transport
        self._first = first
        self._pushes = 0
        self._drawn = 0
        self._checkpoints = 0  # so far
        self._began = time.perf_counter()
        self._computed_s = 0.0  # before the cut that the run goes on from

    def start(self) -> None:
        if self._resumed:
            self._pull()
            self._began = time.perf_counter() - self.waited_s - self._computed_s
            return
        if self._first:
            self.grads[:] = self.params  # the first push is where everyone starts
        self._transport.exchange(
            MessageKind.INIT if self._first else MessageKind.PULL, (0, 0, 0, 0, 0, 0, 0.0, 0.0), self._first
        )
        self.grads[:] = 0
        self._began = time.perf_counter()

    def _pull(self) -> None:
        """Gets the answer to the push that was the last before the cut."""
        fields = (self._pushes, self._pushes, 0, 0, self._drawn, 0, 0.0, 0.0)
        self.version = self._transport.exchange(MessageKind.PULL, fields, False).version

    def step(self, samples: int, loss: float) -> None:
        start = time.perf_counter()
        self._drawn += samples
        self._pushes += 1
        fields = (
            self._pushes,
            self._pushes - 1,
            self.version,
            samples,
            self._drawn,
            0,
            loss,
            ASK * self.checkpoint.request,
        )
        self._hear(self._transport.exchange(_PUSH, fields, samples > 0))
        self.waited_s += time.perf_counter() - start

    def _hear(self, answer: Header) -> None:
        """Takes in what the answer to a push says."""
        self.version = answer.version
        told = self._transport.told
        self.stop = told % RELAY != 0
        checkpoint = self.checkpoint
        checkpoint.reached = answer.push > self._checkpoints
        if checkpoint.reached:
            self._checkpoints, checkpoint.step, checkpoint.stopping = answer.push, answer.clock, told % RELAY >= LEAVE
            if checkpoint.stopping or checkpoint.request < SAVE_AND_STOP:
                checkpoint.request = 0
        elif told >= RELAY:
            checkpoint.request = max(checkpoint.request, min(SAVE_AND_STOP, told // RELAY))

    def state(self) -> State:
        computed = time.perf_counter() - self._began - self.waited_s
        counts = {"pushes": self._pushes, "drawn": self._drawn, "waited_s": self.waited_s, "computed_s": computed}
        sent = {"bytes_sent": self._transport.bytes_sent, "bytes_received": self._transport.bytes_received}
        return State({}, {**counts, **sent})

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        self._resumed = True
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
        fields = (self._pushes, self._pushes, self.version, 0, self._drawn, 0, accuracy, loss)
        self._transport.tell(MessageKind.REPORT, fields, servers=1)

    def finish(self) -> None:
        computed = time.perf_counter() - self._began - self.waited_s
        fields = (self._pushes, self._pushes, self.version, 0, self._drawn, 0, self.waited_s, computed)
        self.version = self._transport.exchange(MessageKind.DONE, fields, False).version
        self.bytes_sent, self.bytes_received = self._transport.bytes_sent, self._transport.bytes_received
