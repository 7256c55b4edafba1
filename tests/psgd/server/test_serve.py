"""One server's run, on real ranks; the loop itself is tested with a fake, in `test_server.py`."""

import numpy as np
import pytest

from psgd import strategies
from psgd.checkpoint.resume import Plan
from psgd.checkpoint.saver import Saver
from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.serve import Serving
from psgd.server.transports.compressed_server_transport import CompressedServerTransport
from psgd.server.transports.server_transport import MpiServerTransport
from psgd.server.transports.worker_transport import MpiWorkerTransport
from psgd.server.wire import MessageKind

N = 200


def context_of(mesh, compression=None, clip_norm=0.0):
    options = OptimizerOptions(rules.sgd(), schedules.constant(1.0), clip_norm)
    params = np.zeros(N)
    return PushPullContext(mesh, params, options, RunMetrics(mesh.workers), Waiter(True), 4096, compression)


def serving_of(context):
    saver = Saver(Plan(), context.mesh, context.metrics)
    return Serving(context, strategies.create("sync", context.mesh.workers), None, [None] * context.mesh.workers, saver)


@pytest.mark.ranks(3)
def test_two_servers_clip_by_the_norm_of_the_whole_gradient(comm):
    grad = np.arange(1.0, N + 1)
    with Mesh(comm, 2) as mesh:
        context = context_of(mesh, clip_norm=3.0)
        expected = -3.0 * grad / np.linalg.norm(grad)
        if mesh.role == "server":
            serving = serving_of(context)
            assert serving.run() is False
            serving.transport.close()
            part = context.shards[mesh.index]
            np.testing.assert_allclose(context.params[part.start : part.stop], expected[part.start : part.stop], 1e-12)
            return
        grads = np.zeros(N)
        transport = MpiWorkerTransport(context, grads)
        transport.exchange(MessageKind.INIT, True)
        grads[:] = grad
        transport.header.push, transport.header.samples, transport.header.position = 1, 4, 4
        transport.exchange(MessageKind.PUSH, True)
        np.testing.assert_allclose(context.params, expected, 1e-12)
        transport.exchange(MessageKind.DONE, False)
        transport.close()


@pytest.mark.ranks(2)
def test_compression_has_a_transport_of_its_own(comm):
    with Mesh(comm, 1) as mesh:
        if mesh.role == "worker":
            return
        for compression in (None, Compression("topk", 0.1, 0.0, 0, 0.0, 0.0)):
            transport = serving_of(context_of(mesh, compression)).transport
            assert type(transport) is (MpiServerTransport if compression is None else CompressedServerTransport)
            transport.close()
