"""Averaging between nodes: the strategy hogwild on several nodes."""

import json
import time

import numpy as np
import pytest
from harness.oracle import same_bits
from harness.peers import SAMPLES, nodes_of_two, start_of
from harness.simulation import Rule, curved, two_nodes

import psgd
from psgd.collectives import Communicator
from psgd.metrics.totals import Sums
from psgd.strategies.hogwild.node_averaging import NodeAveraging


@pytest.mark.ranks(2)
def test_what_is_written_meanwhile_stays(comm):
    """Numbers that add exactly: 3/4 of 8 and 1/4 of 16 is 10."""
    params = np.full(5, 8.0 * (comm.rank + 1))
    averaging = NodeAveraging(Communicator(comm), params)
    real = averaging._comm.Allreduce

    def allreduce(*arguments):
        params[2] += 0.5 + comm.rank
        real(*arguments)
        params[3] -= 32.0

    averaging._comm.Allreduce = allreduce
    assert not averaging.round(Sums(1, 300 - 200 * comm.rank, 5.0 + comm.rank), done=comm.rank == 1, stop=False)
    assert params.tolist() == [10, 10, 10.5 + comm.rank, -22, 10]
    assert averaging.far == Sums(1, 100 + 200 * comm.rank, 6.0 - comm.rank)
    assert not averaging.stop
    averaging._comm.Allreduce = real
    params[:] = 8.0 * (comm.rank + 1)
    mine = Sums(3, 300 - 200 * comm.rank + 50 * comm.rank, 0.0)  # only the second node has new samples
    assert not averaging.round(mine, done=comm.rank == 0, stop=comm.rank == 0)
    assert params.tolist() == [16.0] * 5
    assert averaging.stop
    params[:] = 8.0 * (comm.rank + 1)
    assert averaging.round(mine, done=True, stop=False)  # nobody has: equal weights
    assert params.tolist() == [12.0] * 5
    averaging.free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("steps", [(12, 12), (13, 30), (9, 0), (0, 0)])
def test_averaging_of_nodes_equals_its_simulation_bit_for_bit(comm, steps):
    n, period = 1001, 4
    params = start_of(comm, n, np.float64)

    def samples(worker, clock):
        return 1 + (3 * worker + clock) % 5

    with nodes_of_two(), psgd.connect(comm, params, strategy="hogwild", lr=0.125, period=period) as ps:
        for clock in range(steps[ps.worker]):
            ps.grads[:] = curved(ps.params, ps.worker, clock)
            ps.step(samples(ps.worker, clock))
    np.testing.assert_array_equal(params, two_nodes(np.cos(np.arange(n)), steps, samples, period, 0.125))


def decaying(samples):
    return 0.5 / (1.0 + samples / 16.0)


@pytest.mark.ranks(5)
def test_nodes_of_several_workers_equal_their_simulation(comm):
    """Nodes {0, 2, 4} and {1, 3}: in each phase first others step, one after the other, then both first workers.

    Weights count all samples of a node; the rate goes by them and by the other node's as of the last averaging.
    Momentum stays each worker's own.
    """
    n, period, phases = 129, 2, 7
    params = start_of(comm, n, np.float64)
    options = {"rule": "momentum", "lr": decaying, "period": period}
    with nodes_of_two(), psgd.connect(comm, params, strategy="hogwild", **options) as ps:
        for clock in range(phases):
            for workers in ([2], [4], [3], [0, 1]):
                comm.Barrier()
                if ps.worker in workers:
                    ps.grads[:] = curved(ps.params, ps.worker, clock)
                    ps.step(SAMPLES[ps.worker])
    w = [np.cos(np.arange(n)) for _ in range(2)]
    ruled = [Rule("momentum", w[0]) for _ in range(5)]
    each_phase = np.array([3 + 2 + 4, 5 + 7])
    weight = (each_phase / each_phase.sum()).tolist()  # the same number of steps of all in each period
    near, far = [0, 0], [0, 0]
    for clock in range(phases):
        for worker in (2, 4, 3, 0, 1):
            node = worker % 2
            ruled[worker].step(w[node], curved(w[node], worker, clock), decaying(near[node] + far[node]))
            near[node] += SAMPLES[worker]
        if (clock + 1) % period == 0:
            mean = weight[0] * w[0] + weight[1] * w[1]
            w, far = [each + (mean - each) for each in w], near[::-1]
    np.testing.assert_array_equal(params, weight[0] * w[0] + weight[1] * w[1])


@pytest.mark.ranks(4, 5)
def test_a_first_worker_that_is_done_averages_on_for_its_node(comm):
    """Its node's other worker makes many more steps; the other node sees them before the end."""
    params = np.zeros(50, np.float64)
    with nodes_of_two(), psgd.connect(comm, params, strategy="hogwild", lr=1.0, period=5) as ps:
        if ps.worker == 2:
            ps.grads[:] = -1.0
            for _ in range(100):
                ps.step()
        if ps.worker == 3:
            limit = time.monotonic() + 20
            while ps.params[0] == 0 and time.monotonic() < limit:
                ps.step()
            assert ps.params[0] > 0
    assert same_bits(comm, params)
    np.testing.assert_array_equal(params, params[0])
    assert 0 < params[0] < 100


HOSTS = """
import json
import numpy as np
from mpi4py import MPI
import psgd
from psgd.metrics import RunMetrics
comm = MPI.COMM_WORLD
params, metrics = np.full(1000, 1.0 + comm.rank), RunMetrics(4)
with psgd.connect(comm, params, strategy="hogwild", lr=0.01, period=8, metrics=metrics) as ps:
    seen = ps.params[:1].copy()
    for _ in range(100 + 50 * ps.worker):
        ps.grads[:] = ps.params - 5.0
        ps.step(2, 0.5)
everyone = comm.gather((params.tobytes().hex(), float(seen[0])))
if comm.rank == 0:
    print(json.dumps([metrics.pushes, metrics.samples, metrics.loss, params[0], len({a for a, _ in everyone})]))
"""


def test_two_hosts(hosts):
    """Every step shrinks w - 5, but an average may carry w beyond 5: the node's steps meanwhile are added to it."""
    result = hosts(2).run(2, HOSTS, timeout=50, check=True)
    pushes, samples, loss, value, different = json.loads(result.stdout)
    assert (pushes, samples, loss, different) == ([100, 150, 200, 250], 1400, 0.5, 1)
    assert abs(5.0 - value) < 4.0  # nearer than where it began
