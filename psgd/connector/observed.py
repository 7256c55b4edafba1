"""A connection that tells callbacks what happens, and times it for a trace. Runs with neither have the plain one."""

import time
from collections.abc import Sequence
from types import TracebackType

from mpi4py import MPI

from psgd.connection import NO_LOSS, Connection
from psgd.metrics.callback import Callback
from psgd.metrics.trace.event_ring import KINDS
from psgd.metrics.trace.run_trace import RunTrace
from psgd.metrics.trace.span import Span, Traceable
from psgd.server.serve import Serving
from psgd.worker.interface import Worker

_COMPUTE, _STEP, _LOST = map(KINDS.index, ("compute", "step", "lost"))


class ObservedConnection(Connection):
    """A connection that is watched. Call `observe` before the block."""

    _callbacks: Sequence[Callback] = ()
    _trace: RunTrace | None = None
    _left = 0.0  # when the last step returned
    _part = _seen = _epochs = 0  # this worker's samples in an epoch, those so far, and its epochs

    def observe(self, callbacks: Sequence[Callback], trace: RunTrace | None) -> "ObservedConnection":
        """Tells the callbacks and the trace from now on; returns itself."""
        self._callbacks, self._trace = callbacks, trace
        if callbacks:
            self._saver.on_save = self._saved
        if trace is not None:
            self._teardown.before_end = lambda: self._end_trace(trace)
        return self

    def _end_trace(self, trace: RunTrace) -> None:
        """All ranks that live merge their parts. Collective, blocks."""
        if (survival := self.mesh.survival) is None:
            trace.finish(self.wait)
        else:
            survival.among_living(lambda living, _: trace.finish(self.wait, living))
        trace.close()

    def _mark_lost(self, rank: int) -> None:
        """This rank tells of a death."""
        if self._trace is not None:
            now = time.perf_counter()
            self._trace.ring.add(_LOST, now, now, 0, rank)

    def _trace_anew(self) -> None:
        """After a death some objects are others, which are not timed yet."""
        if self._client is not None:
            self.trace_also(*self._client.spans())

    def wait(self, request: MPI.Request) -> None:
        """Waits for a request, or until another rank has failed. Blocks."""
        self._teardown.wait(request)

    def trace_also(self, *spans: Traceable) -> None:
        """Times these too, where there is a trace."""
        if self._trace is not None:
            self._trace.watch(spans)

    def _saved(self, step: int) -> None:
        for each in self._callbacks:
            each.on_save(self, step)

    def _begin(self, client: Worker) -> None:
        super()._begin(client)
        working, samples = self._client, self.metrics.samples_per_epoch
        if working is not None:
            self.trace_also(*working.spans(), Span(working, "finish", "finish"), *self._saver.spans())
        self._part = len(range(self.mesh.index, samples, self.workers))
        if self._part and (found := self.resumed_from) is not None:
            self._seen = found.manifest.samples * self._part // samples
            self._epochs = self._seen // self._part
        for each in self._callbacks:
            each.on_train_begin(self)
        self._left = time.perf_counter()

    def _serve(self, serving: Serving) -> bool:
        self.trace_also(*serving.spans(), *self._saver.spans())
        return super()._serve(serving)

    def step(self, samples: int = 1, loss: float = NO_LOSS) -> None:
        if self._trace is None:
            super().step(samples, loss)
        else:
            self._traced_step(samples, loss, self._trace)
        for each in self._callbacks:
            each.on_step_end(self, samples, loss)
        self._seen += samples
        while self._part and self._seen >= (self._epochs + 1) * self._part:
            self._epochs += 1
            for each in self._callbacks:
                each.on_epoch_end(self, self._epochs)

    def _traced_step(self, samples: int, loss: float, trace: RunTrace) -> None:
        add, start = trace.ring.add, time.perf_counter()
        add(_COMPUTE, self._left, start)
        try:
            super().step(samples, loss)
        finally:
            self._left = time.perf_counter()
            add(_STEP, start, self._left, 0, self._saver.clock)

    def report(self, accuracy: float, loss: float) -> None:
        super().report(accuracy, loss)
        for each in self._callbacks:
            each.on_evaluate(self, accuracy, loss)

    def __enter__(self) -> "ObservedConnection":
        if self._trace is not None and (survival := self.mesh.survival) is not None:
            survival.on_lost, survival.on_regroup = self._mark_lost, self._trace_anew
        try:
            super().__enter__()
        except BaseException as error:
            self._failed(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            swallows = super().__exit__(kind, error, trace)
        except BaseException as failure:
            self._failed(failure)
            raise
        if error is not None and not swallows:
            self._failed(error)
        else:
            for each in self._callbacks:
                each.on_train_end(self)
        return swallows

    def _failed(self, error: BaseException) -> None:
        """The others have been told."""
        try:
            for each in self._callbacks:
                each.on_exception(self, error)
        finally:
            if self._trace is not None:
                self._trace.abandon()
