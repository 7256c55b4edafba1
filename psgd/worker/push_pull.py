"""A worker whose servers are other ranks: it pushes its gradient to all of them and pulls the parameters."""

import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from psgd.checkpoint.declared import Combine, Fact, Item
from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.metrics.trace.span import Traceable
from psgd.runtime.jsonable import section, wholes
from psgd.server.context import PushPullContext
from psgd.server.transports.traced_exchange import TracedExchanges
from psgd.server.transports.worker_transport import MpiWorkerTransport
from psgd.server.wire import Header, MessageKind
from psgd.worker.base import WorkerBase
from psgd.worker.checkpoint_status import CheckpointStatus
from psgd.worker.interface import Vector

Transport = TypeVar("Transport", bound=MpiWorkerTransport)

_PUSH = int(MessageKind.PUSH)  # a plain number: an enum's members cost on the hot path


class PushPullWorker(WorkerBase, Generic[Transport]):
    """A worker with servers on other ranks, which count the steps from one checkpoint to the next."""

    def __init__(self, context: PushPullContext, transport: Transport, grads: Vector) -> None:
        super().__init__(context.params, grads, transport.worker, CheckpointStatus())
        self.transport = transport
        self._pushes = 0
        self._numbers = context.metrics.push_numbers
        self._drawn = 0
        self._checkpoints = 0  # so far
        self._was_done = False  # at the checkpoint that the run resumes from
        self._began = time.perf_counter()

    def start(self) -> None:
        if self._resumed:
            computed_s = self._computed_s
            self._pull()
            self._computed_s = computed_s
            return
        first = self.transport.worker == 0
        if first:
            self.grads[:] = self.params  # the first push is where everyone starts
        self.transport.exchange(MessageKind.INIT if first else MessageKind.PULL, first)
        self.grads[:] = 0
        self._began = time.perf_counter()

    def spans(self) -> list[Traceable]:
        return [TracedExchanges(self.transport)]

    def _pull(self) -> None:
        """Gets the answer to the push that was the last before the checkpoint."""
        header = self.transport.header
        header.push, header.position = self._pushes, self._drawn
        self.version = self.transport.exchange(MessageKind.PULL, False).version

    def step(self, samples: int, loss: float) -> None:
        start = time.perf_counter()
        self._drawn += samples
        self._pushes += 1
        header = self.transport.header
        header.push, header.version, header.samples, header.position = self._pushes, self.version, samples, self._drawn
        header.loss, header.checkpoint_request = loss, self.checkpoint.request
        self._numbers.sent = self._pushes
        answer = self.transport.exchange(_PUSH, samples > 0)
        self._numbers.acknowledged = self._pushes
        self.version, self.stop, self.checkpoint.reached = answer.version, answer.stop, False
        if answer.checkpoints > self._checkpoints or answer.checkpoint_request:
            self._note_checkpoint(answer)
        self.waited_s += time.perf_counter() - start

    def _note_checkpoint(self, answer: Header) -> None:
        """The answer tells of a checkpoint, or of a request that this worker is to pass on to all servers."""
        checkpoint = self.checkpoint
        checkpoint.reached = answer.checkpoints > self._checkpoints
        if not checkpoint.reached:
            checkpoint.request = max(checkpoint.request, answer.checkpoint_request)
            return
        self._checkpoints, checkpoint.step = answer.checkpoints, answer.checkpoint_version
        checkpoint.stopping = answer.leaving
        if checkpoint.stopping or checkpoint.request < SAVE_AND_STOP:
            checkpoint.request = 0

    @property
    def _computed_s(self) -> float:
        """Seconds outside of `step`, since the start of the run."""
        return time.perf_counter() - self._began - self.waited_s

    @_computed_s.setter
    def _computed_s(self, seconds: float) -> None:
        self._began = time.perf_counter() - self.waited_s - seconds

    def _kept(self) -> list[Item]:
        own, transport = Combine.FRESH, self.transport
        return [
            Fact("pushes", self, "_pushes", own),
            Fact("drawn", self, "_drawn", own),
            Fact("waited_s", self, combine=own),
            Fact("computed_s", self, "_computed_s", own),  # behind the seconds from which it is computed
            Fact("bytes_sent", transport, combine=own),
            Fact("bytes_received", transport, combine=own),
        ]

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        log = section(others[0].facts, "log")
        clocks, positions = wholes(log, "clocks"), wholes(log, "positions")
        if not len(clocks) == len(positions) == self.transport.workers:
            return []
        counted = clocks[self._index], positions[self._index]
        self._was_done = own is None
        if self._was_done:  # the servers know of it
            self._pushes, self._drawn = counted
        elif (self._pushes, self._drawn) != counted:
            raise CheckpointError(
                f"worker {self._index} saved {self._pushes} pushes of {self._drawn} samples, but the servers had "
                f"counted {counted[0]} of {counted[1]}: the files are not of one checkpoint"
            )
        self._numbers.sent = self._numbers.acknowledged = self._pushes
        return []

    def report(self, accuracy: float, loss: float) -> None:
        header = self.transport.header
        header.accuracy, header.loss = accuracy, loss
        self.transport.tell(MessageKind.REPORT)

    def finish(self) -> None:
        header = self.transport.header
        header.push = self._pushes
        header.waited_s, header.computed_s = self.waited_s, time.perf_counter() - self._began - self.waited_s
        self.version = self.transport.exchange(MessageKind.DONE, False).version
        self.bytes_sent, self.bytes_received = self.transport.bytes_sent, self.transport.bytes_received
