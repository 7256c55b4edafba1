"""What a server refuses of encoded pushes, and its own that would be none; the exchanges themselves are tested with
`compressed_worker_transport`."""

import numpy as np
import pytest

from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.kernels.errors import ContractError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.transports.compressed_server_transport import CompressedServerTransport
from psgd.server.wire import HEADER_BYTES, Header, MessageKind

N = 300
CODEC = Compression("topk", 0.1, 0.0, 0, 0.0, 0.0)


def transport_of(mesh, params):
    options = OptimizerOptions(rules.sgd(), schedules.constant(0.5))
    context = PushPullContext(mesh, params, options, RunMetrics(1), Waiter(True), N, CODEC)
    return CompressedServerTransport(context, CODEC, params, [range(N)])


def send(comm, payload_bytes):
    buffer = np.zeros(HEADER_BYTES, np.uint8)
    raw = bytes(Header(kind=MessageKind.PUSH, push=1, samples=1, payload_bytes=payload_bytes))
    buffer[: len(raw)] = np.frombuffer(raw, np.uint8)
    comm.Send(buffer, 0, Tag.PUSH)


@pytest.mark.ranks(2)
def test_a_payload_of_another_length_is_refused(comm):
    with Mesh(comm, 1) as mesh:
        if mesh.role == "worker":
            send(mesh.world, 40)
            mesh.world.Send(np.zeros(24, np.uint8), 0, Tag.PAYLOAD)
            return
        transport = transport_of(mesh, np.zeros(N))
        transport.next()
        with pytest.raises(ContractError, match="worker 0 announced a payload of 40 bytes, sent 24"):
            transport.fetch(0, 0)
        transport.close()


@pytest.mark.ranks(2)
def test_parameters_that_are_not_finite_are_not_sent(comm):
    with Mesh(comm, 1) as mesh:
        if mesh.role == "worker":
            send(mesh.world, -1)
            return
        params = np.zeros(N)
        transport = transport_of(mesh, params)
        transport.next()
        transport.restore({}, {0: np.zeros(N)})
        params[7] = np.inf
        transport.reply([0], Header(kind=MessageKind.REPLY))
        with pytest.raises(ContractError, match="not finite: lower the learning rate, or use clip_norm"):
            transport.emit([0], 0)
        transport.close()
