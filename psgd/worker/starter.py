"""Makes and starts the worker of a run: the one with servers, or a single rank's; each may resume from a checkpoint."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.saver import Saver
from psgd.kernels.notice import say
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.device_vectors import on_device
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.shard import Shard
from psgd.server.transports.gradient_memory import Gradients
from psgd.server.transports.worker_transport import MpiWorkerTransport
from psgd.worker.interface import Worker
from psgd.worker.local import LocalWorker
from psgd.worker.push_pull import PushPullWorker

Vector = NDArray[np.floating]


def create_local(
    params: Vector,
    optimizer: OptimizerOptions,
    segment: int,
    metrics: RunMetrics,
    updates: HostUpdates | None = None,
) -> LocalWorker:
    """The worker of a single rank; with `updates` threads take its steps."""
    shard = Shard(params, optimizer, segment=params.size if on_device(params) else segment)
    if updates is not None:
        from psgd.worker.offloaded_local import OffloadedLocal

        return OffloadedLocal(shard, _zeros(params, updates.pinned), metrics, updates)
    return LocalWorker(shard, np.zeros_like(params), metrics)


def _zeros(like: Vector, pinned: bool) -> Vector:
    if not pinned:
        return np.zeros_like(like)
    from psgd.backend.offload.bus import zeros_pinned

    return zeros_pinned(like)


def create_push_pull(context: PushPullContext, gradients: Gradients) -> PushPullWorker[Any]:
    """A worker with servers; `worker.transport` is its side of the wire."""
    assert gradients.own is not None
    if context.compression is not None:
        from psgd.worker.compressed_push_pull import CompressedPushPullWorker, SurvivingCompressedWorker

        kind = CompressedPushPullWorker if context.mesh.survival is None else SurvivingCompressedWorker
        return kind(context, context.compression, gradients.own)
    if context.mesh.survival is not None:
        from psgd.worker.surviving_push_pull import SurvivingPushPullWorker

        return SurvivingPushPullWorker(context, gradients)
    transport = MpiWorkerTransport(context, gradients.own, gradients.reached)
    return PushPullWorker(context, transport, gradients.own)


def start(worker: Worker, saver: Saver, mesh: Mesh) -> None:
    """Starts a worker, after it has restored what it had saved, where the run is resumed. Blocks.

    Args:
        worker: not started.
        saver: of this rank.
        mesh: of the run; its first rank of this kind says what could not be restored.
    """
    worker.checkpoint.every = saver.every
    if saver.found is not None:
        lost = saver.restored(lambda: worker.restore(*saver.states()))
        for line in lost if mesh.index == 0 else ():
            say(f"warning: resume: {line}")
    worker.start()
    if mesh.survival is not None and not mesh.servers:  # with servers their workers say so themselves
        mesh.survival.started()
