"""A worker that pushes encoded gradients and pulls encoded parameters.

What a push or a pull does not say stays with its sender for a later one. A push's header says in `extra` what follows:
the bytes of a payload, `WHOLE` for the gradient as it is, `NOTHING` for a push without samples. The answer has the same
form.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import State
from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import BeforeEncoding, Compression
from psgd.kernels.codecs import sparse
from psgd.kernels.errors import CheckpointError
from psgd.runtime.mesh import Mesh
from psgd.server.compressed_worker_transport import WHOLE, CompressedWorkerTransport
from psgd.server.wire import ASK, Header, MessageKind
from psgd.worker.push_pull import PushPullWorker

Vector = NDArray[np.floating]


class CompressedPushPullWorker(PushPullWorker):
    """A worker. Implements `psgd.worker.interface.Worker`.

    A gradient that is not finite is left out: the worker keeps pace without it, and residuals and momentum stay as they
    are.
    """

    def __init__(
        self,
        transport: CompressedWorkerTransport,
        params: Vector,
        wire: Vector,
        first: bool,
        compression: Compression,
        before: BeforeEncoding,
        workers: int,
    ) -> None:
        super().__init__(transport, params, wire, first)
        self._compressed, self._wire, self._before = transport, wire, before
        self._whole_until, self._sync_every = compression.warmup / workers, compression.sync_every
        self._whole = True  # the newest exchange was of whole vectors
        self._pulled = params[:0]  # the parameters before the answer that tells of a cut

    def start(self) -> None:
        self._compressed.compile()
        super().start()
        self.grads = np.zeros_like(self._wire)

    def step(self, samples: int, loss: float) -> None:
        start = time.perf_counter()
        whole = self._drawn < self._whole_until
        self._drawn += samples
        self._pushes += 1
        dropped = samples > 0 and sparse.look(self.grads) < 0
        if dropped:
            samples = 0
        if samples and not self._before(self._wire, self.grads, self.params, 1.0):
            dropped, samples = True, 0
        asks = dropped + ASK * self.checkpoint.request
        fields = (self._pushes, self._pushes - 1, self.version, samples, self._drawn, WHOLE, loss, float(asks))
        self._whole = whole or (self._sync_every > 0 and self._pushes % self._sync_every == 0)
        if self._whole:
            if samples:
                self._compressed.add_left_over()
            self._hear(self._transport.exchange(MessageKind.PUSH, fields, samples > 0))
        else:
            self._compressed.push(fields, samples > 0, self._hear)
        self.waited_s += time.perf_counter() - start

    def _hear(self, answer: Header) -> None:
        super()._hear(answer)
        if self.checkpoint.reached and not self._whole:
            self._pulled = self.params.copy()

    def _pull(self) -> None:
        if self._whole:
            super()._pull()
        else:
            fields = (self._pushes, self._pushes, 0, 0, self._drawn, 0, 0.0, 0.0)
            self._compressed.push(fields, False, super()._hear, MessageKind.PULL)

    def state(self) -> State:
        """The answer that told of the cut is not in it: the resumed run gets it again."""
        state = super().state()
        state.facts["whole"] = self._whole
        state.tensors.update(self._arrays())
        if not self._whole:
            state.tensors["pulled"] = self._pulled
        return state

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """Residuals of workers that are no more are shared out to those that are, so nothing is lost."""
        super().restore(state, others)
        mine = self._arrays()
        if state is not None and mine.keys() == state.tensors.keys() - {"pulled"}:
            for name, array in mine.items():
                if array.shape != state.tensors[name].shape:
                    raise CheckpointError(f"{name}: expected shape {array.shape}, got {state.tensors[name].shape}")
                array[:] = state.tensors[name]
            self._take(state)
            return []
        workers = [other for other in others if "whole" in other.facts]
        heirs = [state] if state is not None else workers[self._transport.worker :: self._transport.workers]
        for heir in heirs:
            left_over = joined(heir.tensors, "residual")
            for link, cut in zip(self._compressed.links, self._compressed.cuts, strict=True):
                if link is not None:
                    link.up.residual += left_over[cut]
        if state is None:
            return ["the workers' momentum and the codecs' thresholds start again, as the workers are others"]
        if self._before.velocity.size:
            self._before.velocity[:] = state.tensors["velocity"]
        self._take(state)
        return ["the codecs' thresholds and momentum start again, as the servers are others"]

    def _take(self, state: State) -> None:
        self._whole = state.facts["whole"]
        if not self._whole:
            self.params[:] = state.tensors["pulled"]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What codecs and momentum remember, as views; of each server's codec on its own."""
        links = enumerate(self._compressed.links)
        codecs = {f"{i}.{name}": a for i, link in links if link is not None for name, a in link.up.arrays().items()}
        return codecs | ({"velocity": self._before.velocity} if self._before.velocity.size else {})


def joined(tensors: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """A vector of which each server's codec has a part."""
    indexes = sorted(int(key.partition(".")[0]) for key in tensors if key.endswith(f".{name}"))
    return np.concatenate([tensors[f"{index}.{name}"] for index in indexes])


def join(
    mesh: Mesh,
    params: Vector,
    wire: Vector,
    shards: Sequence[range],
    compression: Compression,
    clip_norm: float,
    segment: int,
    waiter: Waiter,
) -> tuple[CompressedWorkerTransport, CompressedPushPullWorker]:
    """Makes a worker; `wire` is what its gradients are sent from."""
    transport = CompressedWorkerTransport(
        mesh, params, wire, shards, compression=compression, segment=segment, waiter=waiter
    )
    before = BeforeEncoding(compression, params.size, params.dtype, clip_norm, mesh.workers)
    first = mesh.index == 0
    return transport, CompressedPushPullWorker(transport, params, wire, first, compression, before, mesh.workers)
