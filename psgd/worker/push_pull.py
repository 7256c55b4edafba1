"""A worker whose servers are other ranks: it pushes its gradient to all of them and pulls the parameters."""

import time
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.server.context import PushPullContext
from psgd.server.wire import Header, MessageKind
from psgd.server.worker_transport import MpiWorkerTransport
from psgd.worker.interface import nobody_saves

Vector = NDArray[np.floating]
Transport = TypeVar("Transport", bound=MpiWorkerTransport)

_PUSH = int(MessageKind.PUSH)  # a plain number: an enum's members cost on the hot path


class PushPullWorker(Generic[Transport]):
    """A worker with servers on other ranks. Implements `Worker`.

    Args:
        context: of the run.
        transport: its side of the wire.
        grads: what the transport sends.

    Attributes:
        transport: as given.
    """

    def __init__(self, context: PushPullContext, transport: Transport, grads: Vector) -> None:
        self.params, self.grads = context.params, grads
        self.version = 0
        self.waited_s = 0.0
        self.stop = self.saving = self.leaving = False
        self.cut = 0
        self.on_cut = nobody_saves
        self.bytes_sent = self.bytes_received = 0
        self.transport = transport
        self._restored = False
        self._pushes = 0
        self._drawn = 0
        self._checkpoints = 0  # so far
        self._request = 0  # what is to be saved: `psgd.checkpoint.requests.SAVE`
        self._began = time.perf_counter()
        self._computed_s = 0.0  # before the checkpoint that the run resumes from

    def start(self) -> None:
        if self._restored:
            self._pull()
            self._began = time.perf_counter() - self.waited_s - self._computed_s
            return
        first = self.transport.worker == 0
        if first:
            self.grads[:] = self.params  # the first push is where everyone starts
        self.transport.exchange(MessageKind.INIT if first else MessageKind.PULL, first)
        self.grads[:] = 0
        self._began = time.perf_counter()

    def _pull(self) -> None:
        """Gets the answer to the push that was the last before the checkpoint."""
        self.version = self.transport.exchange(MessageKind.PULL, False).version

    def overlap(self, samples: int) -> None:
        pass

    def step(self, samples: int, loss: float) -> None:
        start = time.perf_counter()
        self._drawn += samples
        self._pushes += 1
        header = self.transport.header
        header.push, header.version, header.samples, header.position = self._pushes, self.version, samples, self._drawn
        header.loss, header.checkpoint_request = loss, self._request
        answer = self.transport.exchange(_PUSH, samples > 0)
        self.version, self.stop, self.saving = answer.version, answer.stop, False
        if answer.checkpoints > self._checkpoints or answer.checkpoint_request:
            self._note_checkpoint(answer)
        self.waited_s += time.perf_counter() - start

    def _note_checkpoint(self, answer: Header) -> None:
        """The answer tells of a checkpoint, or of a request that this worker is to pass on to all servers."""
        self.saving = answer.checkpoints > self._checkpoints
        if not self.saving:
            self._request = max(self._request, answer.checkpoint_request)
            return
        self._checkpoints, self.cut, self.leaving = answer.checkpoints, answer.checkpoint_version, answer.leaving
        if self.leaving or self._request < SAVE_AND_STOP:
            self._request = 0

    def ask_save(self, stop: bool) -> None:
        self._request = max(self._request, SAVE_AND_STOP if stop else SAVE)

    def save_every(self, steps: int) -> None:
        """It is the servers who count (`psgd.server.checkpoint_points`)."""

    def state(self) -> State:
        computed = time.perf_counter() - self._began - self.waited_s
        counts = {"pushes": self._pushes, "drawn": self._drawn, "waited_s": self.waited_s, "computed_s": computed}
        sent = {"bytes_sent": self.transport.bytes_sent, "bytes_received": self.transport.bytes_received}
        return State({}, {**counts, **sent})

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        self._restored = True
        log = others[0].facts["log"]
        if state is not None:
            facts = state.facts
            self._pushes, self._drawn, self.waited_s = facts["pushes"], facts["drawn"], facts["waited_s"]
            self._computed_s = facts["computed_s"]
            self.transport.bytes_sent, self.transport.bytes_received = facts["bytes_sent"], facts["bytes_received"]
        elif len(log["clocks"]) == self.transport.workers:  # it was done
            index = self.transport.worker
            self._pushes, self._drawn = log["clocks"][index], log["positions"][index]
        return []

    def report(self, accuracy: float, loss: float) -> None:
        header = self.transport.header
        header.accuracy, header.loss = accuracy, loss
        self.transport.tell(MessageKind.REPORT)

    def finish(self) -> None:
        header = self.transport.header
        header.waited_s, header.computed_s = self.waited_s, time.perf_counter() - self._began - self.waited_s
        self.version = self.transport.exchange(MessageKind.DONE, False).version
        self.bytes_sent, self.bytes_received = self.transport.bytes_sent, self.transport.bytes_received
