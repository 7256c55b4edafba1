"""A worker that pushes encoded gradients and pulls encoded parameters, through the compressed worker transport."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore, vectors
from psgd.checkpoint.state import State
from psgd.compression.before_encoding import BeforeEncoding
from psgd.compression.options import Compression
from psgd.kernels.codecs import sparse
from psgd.runtime.jsonable import same_kind
from psgd.server.context import PushPullContext
from psgd.server.surviving.coded_worker_side import CodedWorkerTransport
from psgd.server.transports.compressed_worker_transport import CompressedWorkerTransport
from psgd.worker.interface import Vector
from psgd.worker.push_pull import PushPullWorker
from psgd.worker.surviving_push_pull import GoesOn


class CompressedPushPullWorker(PushPullWorker[CompressedWorkerTransport]):
    """A worker whose gradients are sent from `wire`, which is not the vector that its caller fills.

    A gradient that is not finite is left out: the worker keeps pace without it, and residuals and momentum stay as they
    are.
    """

    def __init__(self, context: PushPullContext, compression: Compression, wire: Vector) -> None:
        workers = context.mesh.workers
        super().__init__(context, self._transport(context, compression, wire), wire)
        self._wire = wire
        self._before = BeforeEncoding(compression, context.params, context.optimizer, workers)
        self._compression = compression._replace(warmup=compression.warmup / workers)  # by its own samples

    def _transport(self, context: PushPullContext, compression: Compression, wire: Vector) -> CompressedWorkerTransport:
        return CompressedWorkerTransport(context, compression, wire)

    def start(self) -> None:
        self.transport.compile()
        super().start()
        self.grads = np.zeros_like(self._wire)

    def step(self, samples: int, loss: float) -> None:
        start = time.perf_counter()
        transport = self.transport
        transport.whole = self._compression.sends_whole(self._drawn, self._pushes + 1)
        finite = not samples or sparse.look(self.grads) >= 0
        sendable = finite and (not samples or self._before(self._wire, self.grads, self.params, 1.0))
        transport.header.dropped = not sendable
        if not sendable:
            self._drawn += samples  # they count as drawn all the same
            samples = 0
        if samples and transport.whole:
            transport.add_residuals()
        self.waited_s += time.perf_counter() - start
        super().step(samples, loss)

    def state(self) -> State:
        state = super().state()
        state.facts["whole"] = self.transport.whole
        state.tensors.update(self._arrays())
        if not self.transport.whole:
            state.tensors["pulled"] = self.transport.pulled
        return state

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """Residuals of workers that are no more are shared out to those that are, so nothing is lost."""
        super().restore(state, others)
        mine = self._arrays()
        if state is not None and mine.keys() == state.tensors.keys() - {"pulled"}:
            restore.put_back(mine, state)
            self._resume_at(state)
            return []
        workers = [other for other in others if "whole" in other.facts]
        if state is None and self._was_done and workers:
            return []  # what it had left to send went with its end
        heirs = [state] if state is not None else workers[self.transport.worker :: self.transport.workers]
        for heir in heirs:
            residual = restore.fitting("residual", self.params, vectors.joined(heir.tensors, "residual"))
            for shard in self.transport.coded:
                shard.codec.residual += residual[shard.part]
        if state is None:
            return [
                "the workers' momentum and the codecs' thresholds are reset, since the number of workers has changed"
            ]
        if self._before.velocity.size:
            restore.put_back({"velocity": self._before.velocity}, state)
        self._resume_at(state)
        return ["the codecs' thresholds and momentum are reset, since the servers have changed"]

    def _resume_at(self, state: State) -> None:
        self.transport.whole = same_kind(state.facts, "whole", True)
        if not self.transport.whole:
            restore.put_back({"pulled": self.params}, state)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What codecs and momentum remember, as views; of each server's codec on its own."""
        codecs = {
            f"{shard.server}.{name}": array
            for shard in self.transport.coded
            for name, array in shard.codec.arrays().items()
        }
        return codecs | ({"velocity": self._before.velocity} if self._before.velocity.size else {})


class SurvivingCompressedWorker(GoesOn, CompressedPushPullWorker):
    """One that goes on without workers that die. What it sends is applied, so its residual never has to be put back."""

    transport: CodedWorkerTransport

    def __init__(self, context: PushPullContext, compression: Compression, wire: Vector) -> None:
        super().__init__(context, compression, wire)
        self._survives(context.mesh.survival)

    def _transport(self, context: PushPullContext, compression: Compression, wire: Vector) -> CompressedWorkerTransport:
        return CodedWorkerTransport(context, compression, wire)
