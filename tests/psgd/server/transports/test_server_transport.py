"""A server's side of the wire, driven by hand on real ranks."""

import numpy as np
import pytest

from psgd.collectives.mpi.split import segments
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.runtime.mesh import Mesh
from psgd.server.log import Contribution, LogEntry
from psgd.server.transports.server_transport import MpiServerTransport
from psgd.server.wire import HEADER_BYTES, Header, MessageKind

N, SEGMENT = 2500, 1000


def message(payload=0, **fields):
    buffer = np.zeros(HEADER_BYTES + payload, np.uint8)
    raw = bytes(Header(**fields))
    buffer[: len(raw)] = np.frombuffer(raw, np.uint8)
    return buffer


@pytest.mark.ranks(2)
def test_an_evaluation_and_the_push_behind_it_keep_apart(comm):
    """Nobody answers the first header, so the second may come while the server still reads it."""
    with Mesh(comm, 1) as mesh:
        if mesh.role == "worker":
            for buffer in (
                message(kind=MessageKind.REPORT, accuracy=0.5, loss=2.0),
                message(kind=MessageKind.PUSH, push=1, loss=3.0),
            ):
                mesh.world.Send(buffer, 0, Tag.PUSH)
            mesh.world.Recv(np.empty(HEADER_BYTES, np.uint8), 0, Tag.REPLY)
            mesh.world.Recv(np.empty(N, np.float32), 0, Tag.PARAMETERS)
            return
        params = np.zeros(N, np.float32)
        transport = MpiServerTransport(mesh, params, [range(N)], Waiter(True))
        report = transport.next()
        push = transport.next()
        assert (report.kind, report.accuracy, report.loss) == (MessageKind.REPORT, 0.5, 2.0)
        assert (push.kind, push.push, push.loss) == (MessageKind.PUSH, 1, 3.0)
        transport.reply([0], Header(kind=MessageKind.REPLY))
        transport.emit([0], 0)
        transport.drain()
        transport.close()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("shared", [False, True])
def test_segments_come_in_order_and_go_out_as_they_are(comm, shared):
    ranges = segments(N, SEGMENT)
    with Mesh(comm, 1) as mesh:
        grads = [np.arange(N, dtype=np.float64) * (worker + 1) for worker in range(2)]
        if mesh.role == "worker":
            worker = mesh.index
            mesh.world.Send(message(kind=MessageKind.PUSH, worker=worker, samples=1), 0, Tag.PUSH)
            for part in ranges if not shared else ():
                mesh.world.Send(grads[worker][part.start : part.stop], 0, Tag.GRADIENT)
            answer, got = np.empty(HEADER_BYTES, np.uint8), np.empty(N)
            mesh.world.Recv(answer, 0, Tag.REPLY)
            header = Header.from_buffer_copy(answer.tobytes())
            assert (header.worker, header.version) == (worker, 4)
            for part in ranges:
                mesh.world.Recv(got[part.start : part.stop], 0, Tag.PARAMETERS)
            np.testing.assert_array_equal(got, 3 * np.arange(N))
            return
        params = np.zeros(N)
        transport = MpiServerTransport(mesh, params, ranges, Waiter(True), grads=grads if shared else None)
        assert {transport.next().worker, transport.next().worker} == {0, 1}
        transport.reply([0, 1], Header(version=4))
        for index, part in enumerate(ranges):
            for worker in range(2):
                params[part.start : part.stop] += transport.fetch(worker, index)
            transport.settle(index)
            transport.emit([0, 1], index)
        transport.drain()
        assert transport.bytes_sent == 2 * (HEADER_BYTES + params.nbytes)
        assert transport.bytes_received == 2 * (HEADER_BYTES + params.nbytes)
        transport.close()


@pytest.mark.ranks(3)
def test_a_server_that_follows_gets_the_log(comm):
    entries = [LogEntry((Contribution(0, 1),), (0,)), LogEntry(release=(0,), ends_log=True)]
    with Mesh(comm, 2) as mesh:
        if mesh.role == "worker":
            return
        transport = MpiServerTransport(mesh, np.zeros(4), [range(4)], Waiter(True), follows=mesh.index == 1)
        if mesh.index == 0:
            for entry in entries:
                transport.publish(entry)
        else:
            assert [transport.next(), transport.next()] == entries
        transport.drain()
        transport.close()
