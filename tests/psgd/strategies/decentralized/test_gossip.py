"""GossipWorker averaging in pairs on real ranks, against the order that the workers recorded."""

import time

import numpy as np
import pytest
from harness.compressed_simulation import pairs
from harness.simulation import curved

import psgd
from psgd.collectives.mpi.tags import Tag
from psgd.metrics.run_metrics import RunMetrics

N = 257


def samples_of(worker, clock):
    return (3 * worker + 5 * clock + 2) % 4


def steps_of(worker):
    return 20 + 7 * worker


def recorded(client):
    """Steps with their rates, what was sent to whom, and moves, in this worker's order; and where it was in the end."""
    log = []
    take, send, move, take_mean = (
        client._optimizer.take,
        client.exchanges._send,
        client.exchanges._move,
        client._take_mean,
    )

    def noting_take(grad, scale, position):
        take(grad, scale, position)
        log.append(("step", client._optimizer.lr))

    def noting_send(partner, tag):
        log.append(("ask" if tag == Tag.PUSH else "answer", partner))
        send(partner, tag)

    def noting_move():
        log.append(("move", None))
        move()

    def noting_take_mean():
        log.append(("end", client.params.copy()))
        take_mean()

    client._optimizer.take, client._take_mean = noting_take, noting_take_mean
    client.exchanges._send, client.exchanges._move = noting_send, noting_move
    return log


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_equals_a_sequential_simulation_of_the_recorded_order(comm, dtype):
    start = np.cos(np.arange(N)).astype(dtype)
    params = start.copy() if comm.rank == 0 else np.full(N, np.nan, dtype)
    metrics, random = RunMetrics(comm.size), np.random.default_rng(comm.rank)
    with psgd.connect(
        comm, params, strategy="decentralized", peers="pairs", lr=lambda n: 0.2 / (1 + n / 50), metrics=metrics
    ) as ps:
        client, log = ps._client, recorded(ps._client)
        for clock in range(steps_of(comm.rank)):
            samples = samples_of(comm.rank, clock)
            ps.grads[:] = curved(ps.params, comm.rank, clock)
            time.sleep(1e-3 * random.random())
            ps.step(samples, 1.0 + comm.rank)
    logs = comm.allgather(log)
    expected = pairs(start, logs, samples_of, curved)
    for theirs, x in zip(logs, expected, strict=True):
        np.testing.assert_array_equal(theirs[-1][1], x)
    np.testing.assert_allclose(params, np.mean(expected, axis=0), rtol=1e-6 if dtype == "float32" else 1e-14, atol=1e-7)
    np.testing.assert_array_equal(params, comm.bcast(params))
    assert client.disagreement == max(np.abs(x - params).max() for x in expected)
    kinds = [what for what, _ in log]
    assert kinds.count("answer" if comm.rank % 2 else "ask") == kinds.count("move") == client.exchanges.count > 0
    taken = [sum(samples_of(k, clock) > 0 for clock in range(steps_of(k))) for k in range(comm.size)]
    seen = [sum(samples_of(k, clock) for clock in range(steps_of(k))) for k in range(comm.size)]
    assert client.version == sum(taken)
    nbytes = 32 * comm.size + params.nbytes
    assert (
        ps.bytes_sent
        == ps.bytes_received
        == nbytes * kinds.count("move") + 2 * (comm.size - 1) * params.nbytes // comm.size
    )
    if comm.rank == 0:
        assert metrics.pushes == taken and metrics.samples == sum(seen) and metrics.steps == sum(taken)
        assert metrics.loss == pytest.approx(sum((1 + k) * n for k, n in enumerate(seen)) / sum(seen))
        assert min(metrics.waited_s) > 0 and min(metrics.computed_s) > 0


@pytest.mark.ranks(2, 5)
def test_exchanges_keep_the_sum_and_bring_workers_together(comm):
    params = np.zeros(N)
    own = np.sin(np.arange(N) * (comm.rank + 1.0))
    with psgd.connect(comm, params, strategy="decentralized", peers="pairs", lr=0.1) as ps:
        client = ps._client
        ps.params[:] = own
        comm.Barrier()
        limit = time.monotonic() + 20
        while comm.allreduce(client.exchanges.count) < 30 * comm.size and time.monotonic() < limit:
            ps.step(0)
    starts = comm.allgather(own)
    mean = np.mean(starts, axis=0)
    np.testing.assert_allclose(params, mean, rtol=0, atol=1e-13)
    assert client.disagreement < 1e-2 * max(np.abs(each - mean).max() for each in starts)


@pytest.mark.ranks(4)
def test_nobody_waits_for_a_worker_that_does_not_look(comm):
    """Worker 1 takes no step until the others have taken all of theirs: worker 0 or 2 may be waiting for its answer."""
    params = np.zeros(N)
    with psgd.connect(comm, params, strategy="decentralized", peers="pairs", lr=0.1, rule="adam") as ps:
        if ps.worker == 1:
            comm.Barrier()
        for _ in range(30):
            ps.grads[:] = 1.0
            ps.step(1)
        if ps.worker != 1:
            comm.Barrier()
    np.testing.assert_array_equal(params, comm.bcast(params))


@pytest.mark.ranks(3)
def test_a_stop_and_evaluations_reach_everyone(comm):
    metrics, params = RunMetrics(3, target_accuracy=0.9), np.zeros(5)
    with psgd.connect(comm, params, strategy="decentralized", peers="pairs", lr=0.1, metrics=metrics) as ps:
        steps = 0
        if ps.worker == 2:
            ps.report(0.5, 0.75)
        while not ps.stop:
            steps += 1
            if ps.worker == 0 and steps == 5:
                ps.report(0.95, 0.25)
            ps.step(1 + ps.worker, 2.0)
            time.sleep(1e-4)
            assert steps < 100_000
    if comm.rank == 0:
        assert metrics.seconds_to_target > 0 and (metrics.accuracy, metrics.loss) == (0.5, 2.0)
