"""A worker's exchange with servers that are driven by hand, on real ranks."""

import numpy as np
import pytest

from psgd.collectives.mpi.split import segments
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import ContractError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.transports.server_transport import MpiServerTransport
from psgd.server.transports.worker_transport import MpiWorkerTransport
from psgd.server.wire import Header, MessageKind

OPTIONS = OptimizerOptions(rules.sgd(), schedules.constant(0.5))


def context_of(mesh, n, segment=1000):
    return PushPullContext(mesh, np.zeros(n), OPTIONS, RunMetrics(mesh.workers), Waiter(True), segment)


def answer(context, index, **fields):
    """What server `index` does for one push: adds 1 to the gradient, and sends that."""
    part = context.shards[index]
    params = context.params[part.start : part.stop]
    ranges = segments(params.size, context.segment)
    transport = MpiServerTransport(context.mesh, params, ranges, context.waiter)
    push = transport.next()
    found = {name: getattr(push, name) for name in ("kind", "push", "shard", "samples", "loss")}
    for at, each in enumerate(ranges):
        params[each.start : each.stop] = transport.fetch(0, at) + 1
    transport.reply([0], Header(kind=MessageKind.REPLY, shard=index, **fields))
    for at in range(len(ranges)):
        transport.emit([0], at)
    transport.drain()
    transport.close()
    return found


@pytest.mark.ranks(3)
@pytest.mark.parametrize("n", [1, 100, 1400, 5000])  # in the header, in a message each, one of each, in several
def test_an_exchange_with_two_servers(comm, n):
    with Mesh(comm, 2) as mesh:
        context = context_of(mesh, n)
        if mesh.role == "server":
            asks = {"stop": mesh.index == 0, "leaving": mesh.index == 1, "checkpoint_request": mesh.index}
            found = answer(context, mesh.index, version=7, checkpoints=2, **asks)
            assert found == {"kind": MessageKind.PUSH, "push": 3, "shard": mesh.index, "samples": 5, "loss": 0.25}
            return
        grads = np.arange(n, dtype=np.float64)
        transport = MpiWorkerTransport(context, grads)
        header = transport.header
        header.push, header.samples, header.loss = 3, 5, 0.25
        got = transport.exchange(MessageKind.PUSH, True)
        assert (got.version, got.checkpoints, got.stop, got.leaving, got.checkpoint_request) == (7, 2, True, True, 1)
        np.testing.assert_array_equal(context.params, np.arange(n) + 1)
        transport.close()


@pytest.mark.ranks(3)
def test_a_torn_read_is_refused(comm):
    with Mesh(comm, 2) as mesh:
        context = context_of(mesh, 100)
        if mesh.role == "server":
            answer(context, mesh.index, version=4 + mesh.index)
            return
        transport = MpiWorkerTransport(context, np.zeros(100))
        with pytest.raises(ContractError, match="torn read: server 0 sent version 4, server 1 version 5"):
            transport.exchange(MessageKind.PUSH, True)
        transport.close()


@pytest.mark.ranks(2)
def test_a_small_push_in_shared_memory_is_a_header_alone(comm):
    import psgd
    from psgd.server.wire import HEADER_BYTES

    n = 100
    with psgd.connect(comm, np.zeros(n, np.float32), strategy="async", placement="dedicated", servers=1, lr=0.5) as ps:
        assert ps.worker == 0  # a server leaves the body here
        link = ps._client.transport._links[0]
        assert link.inline and not link.copies
        assert (link.nbytes_in, link.nbytes_out) == (HEADER_BYTES + 4 * n, HEADER_BYTES)
        for step in range(1, 4):
            ps.grads[:] = np.arange(n)
            ps.step()
            np.testing.assert_array_equal(ps.params, -0.5 * step * np.arange(n))
    if comm.rank == 1:  # first parameters, three pushes, the end: all counted, however they travel
        assert ps.bytes_sent == 5 * HEADER_BYTES + 4 * 4 * n
