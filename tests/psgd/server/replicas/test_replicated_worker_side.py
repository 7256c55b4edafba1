"""A worker whose servers are played by ranks that send messages by hand."""

import numpy as np
import pytest
from harness.failures import FakeFailures
from mpi4py import MPI

from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.replicas.replicated_worker_side import ReplicatedWorkerTransport
from psgd.server.transports.gradient_memory import Gradients
from psgd.server.wire import HEADER_BYTES, Header, MessageKind

SIZE, HALF = 32, 16


class Hand:
    def __init__(self, failures):
        self.failures, self.lost_servers = failures, []

    def lost_server(self, server):
        self.lost_servers.append(server)


class Played:
    """One server's part: what it receives and sends, in the order of the calls."""

    def __init__(self, comm, server):
        self.comm, self.server = comm, server

    def takes(self, kind, elements=0):
        box = np.zeros(HEADER_BYTES, np.uint8)
        self.comm.Recv([box, MPI.BYTE], 2, Tag.PUSH)
        header = Header.inside(box)
        assert header.kind == kind and header.shard == self.server
        for _ in range(elements // HALF):
            part = np.zeros(HALF)
            self.comm.Recv([part, MPI.BYTE], 2, Tag.GRADIENT)
            assert set(part) == {7.0}
        return header.lost_servers

    def answers(self, kind, lost=0, parts=()):
        box = np.zeros(HEADER_BYTES, np.uint8)
        header = Header.inside(box)
        header.kind, header.shard, header.version, header.lost_servers = kind, self.server, 3, lost
        self.comm.Send([box, MPI.BYTE], 2, Tag.REPLY)
        for value in parts:
            self.comm.Send([np.full(HALF, float(value)), MPI.BYTE], 2, Tag.PARAMETERS)


@pytest.mark.ranks(3)
def test_a_part_that_never_came_is_asked_for_and_a_push_that_was_not_taken_is_sent_again(comm):
    mesh = Mesh(comm, servers=2)
    failures = FakeFailures(3)
    mesh.survival = Hand(failures)
    if mesh.role == "server":
        played = Played(mesh.world, mesh.index)
        assert played.takes(MessageKind.PUSH, SIZE) == 0  # each holds both
        if mesh.index == 0:
            played.answers(MessageKind.REPLY, parts=[1])
            assert played.takes(MessageKind.REPEAT) == 0  # server 1 has died before its part was out
            played.answers(MessageKind.AGAIN, lost=2)
            assert played.takes(MessageKind.REPEAT) == 2
            played.answers(MessageKind.REPLY, lost=2, parts=[1, 2])
            assert played.takes(MessageKind.PUSH, SIZE) == 2
            played.answers(MessageKind.END, lost=2, parts=[3, 4])
            assert played.takes(MessageKind.BYE) == 2
        comm.Barrier()
        return
    params, gradient = np.zeros(SIZE), np.full(SIZE, 7.0)
    options = OptimizerOptions(rules.sgd(), schedules.constant(0.1))
    context = PushPullContext(mesh, params, options, RunMetrics(1), Waiter(False), HALF)
    transport = ReplicatedWorkerTransport(context, Gradients(gradient, [], [False, False]))
    began = transport._begin

    def begin(link, with_grads):
        began(link, with_grads)
        if transport.header.kind == MessageKind.PUSH and link.server == 1:
            while not transport._passed(link, link.sent):
                pass
            failures.kill(1)

    transport._begin = begin
    answer = transport.exchange(MessageKind.PUSH, True)
    assert answer.version == 3 and not transport.over
    assert [set(params[:HALF]), set(params[HALF:])] == [{1.0}, {2.0}]
    transport._begin = began
    transport.exchange(MessageKind.PUSH, True)
    assert mesh.survival.lost_servers == [1]
    assert transport.over and [set(params[:HALF]), set(params[HALF:])] == [{3.0}, {4.0}]
    comm.Barrier()
    transport.close()
