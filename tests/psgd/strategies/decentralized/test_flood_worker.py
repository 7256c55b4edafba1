"""Decentralized SGD on real ranks, against the orders that the workers recorded."""

import time
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from harness import compressed_simulation
from harness.resuming import Watched

import psgd
from psgd.metrics.run_metrics import RunMetrics
from psgd.strategies.decentralized.flood import KIND, ORIGIN, SAMPLES, FloodKind

N = 1023


def samples_of(worker, clock):
    """Unequal, at times none."""
    return (3 * worker + 5 * clock + 2) % 7


def steps_of(worker):
    return 8 + 4 * worker


def gradient(params, worker, clock):
    """Depends on the parameters, the worker and the clock. Worker 1 has two that are not finite."""
    ramp = np.arange(1, N + 1) / N
    grad = params * ramp + np.sin(ramp * 50 * (worker + 1) + clock)
    if worker == 1 and clock in (3, 6):
        grad[500] = np.nan if clock == 3 else -np.inf
    return grad


def recorded(client):
    """What a worker applies, in its order; what it puts into its codec; where it is before it takes worker 0's."""
    log = SimpleNamespace(applied=[], put=np.zeros(N), own=None)
    apply, before, take_one = client._apply, client.updates._before, client._take_one

    def noting_apply(message):
        origin, samples, kind = (int(message.words[k]) for k in (ORIGIN, SAMPLES, KIND))
        log.applied.append(
            (origin, int(client.applied[origin]), samples, kind, message.payload[: message.length].tobytes())
        )
        apply(message)

    def noting_before(out, *rest):
        fine = before(out, *rest)
        log.put += out
        return fine

    def noting_take_one():
        log.own = client.params.copy()
        take_one()

    client._apply, client._take_one = noting_apply, noting_take_one
    client.updates._before = Watched(before, noting_before)
    return log


def staleness(logs):
    """Of what worker 0 applied: what it had applied before that the update's origin had not."""
    before = []
    for log in logs:
        seen, so_far = {}, set()
        for origin, number, *_ in log.applied:
            seen[origin, number] = frozenset(so_far)
            so_far.add((origin, number))
        before.append(seen)
    return Counter(
        len(before[0][origin, number] - before[origin][origin, number])
        for origin, number, *_, payload in logs[0].applied
        if payload
    )


@pytest.mark.ranks(2, 3, 4, 5)
@pytest.mark.parametrize(
    ("peers", "window", "options"),
    [
        ("all", 64, {"compress": "threshold", "rule": "momentum", "weight_decay": 0.01}),
        ("all", 2, {"compress": "none", "rule": "momentum"}),
        ("ring", 1, {"compress": "topk"}),
        ("random:2", 3, {"compress": "onebit", "rule": "momentum"}),
        ("ring", 10, {"compress": "threshold", "compress_warmup": 30, "compress_sync": 4}),
    ],
)
def test_every_update_is_applied_once_everywhere(comm, peers, window, options):
    start = np.cos(np.arange(N))
    params = start.copy() if comm.rank == 0 else np.full(N, np.nan)
    metrics, random = RunMetrics(comm.size), np.random.default_rng(comm.rank)
    time.sleep(0.01 * random.random())
    with psgd.connect(
        comm,
        params,
        strategy="decentralized",
        peers=peers,
        window=window,
        density=0.02,
        lr=0.05,
        metrics=metrics,
        **options,
    ) as ps:
        client, log = ps._client, recorded(ps._client)
        for clock in range(steps_of(comm.rank)):
            samples = samples_of(comm.rank, clock)
            ps.grads[:] = gradient(ps.params, comm.rank, clock)
            if random.random() < 0.3:
                time.sleep(2e-3 * random.random())
            ps.step(samples, 1.0 + comm.rank)
    codec = client.updates.codec  # the worker's own order, one after the other: the same bits
    made = [(payload, kind == FloodKind.WHOLE) for *_, kind, payload in log.applied]
    again = compressed_simulation.flood(start, made, None if codec is None else codec.decode_add)
    np.testing.assert_array_equal(log.own, again)
    log.left = np.zeros(N) if client.updates.codec is None else client.updates.codec.residual
    logs = comm.allgather(log)
    for worker, theirs in enumerate(logs):  # each once, in its origin's order, the same bytes
        made = [each for each in theirs.applied if each[0] == worker]
        clocks = [clock for clock in range(steps_of(worker)) if samples_of(worker, clock)]
        assert [each[1:3] for each in made] == [(k, samples_of(worker, clock)) for k, clock in enumerate(clocks)]
        bad = [clock for clock, each in zip(clocks, made, strict=True) if not each[4]]
        assert bad == ([clock for clock in (3, 6) if clock in clocks] if worker == 1 else [])
        assert [each for each in log.applied if each[0] == worker] == made
    # Nothing lost: where all have come to, and what is left, is what was put in.
    np.testing.assert_allclose(
        log.own + sum(each.left for each in logs), start + sum(each.put for each in logs), rtol=0, atol=1e-12
    )
    np.testing.assert_array_equal(params, logs[0].own)
    assert client.disagreement == max(np.abs(each.own - params).max() for each in logs) < 1e-13
    assert client.version == sum(bool(each[4]) for each in log.applied)
    if comm.rank == 0:
        counts = [Counter(bool(each[4]) for each in log.applied if each[0] == k) for k in range(comm.size)]
        assert metrics.pushes == [each[True] for each in counts]
        assert metrics.dropped == [each[False] for each in counts] and sum(metrics.dropped) > 0
        assert metrics.samples == sum(each[2] for each in log.applied if each[4])
        assert metrics.steps == client.version and metrics.lr == 0.05
        assert metrics.staleness == staleness(logs)
        assert min(metrics.waited_s) > 0 and min(metrics.computed_s) > 0


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("compress", "window", "bound"), [("threshold", 5, 5), ("threshold", 1, 1), ("none", 64, 4)])
def test_nobody_is_further_ahead_than_the_window(comm, compress, window, bound):
    """Worker 1 does not look for half a second. The others come as far as the bound meanwhile, and no further."""
    params, returned = np.zeros(N, np.float32), []
    with psgd.connect(
        comm, params, strategy="decentralized", peers="ring", window=window, compress=compress, lr=0.01
    ) as ps:
        client = ps._client
        slept = [0.0, 0.0]
        if ps.worker == 1:
            slept[0] = time.monotonic()
            time.sleep(0.5)
            slept[1] = time.monotonic()
            while time.monotonic() < slept[1] + 0.05:
                client._flood.poll()
            assert client.applied.tolist() == [bound, 0, bound]
        for _ in range(20):
            ps.grads[:] = 1.0
            ps.step(1)
            returned.append(time.monotonic())
        assert ps.waited_s > 0.3 or ps.worker == 1
    slept = comm.bcast(slept, 1)
    assert client.version == 60
    if comm.rank != 1:
        assert sum(at < slept[0] + 0.4 for at in returned) == sum(at < slept[1] for at in returned) == bound - 1


@pytest.mark.ranks(4)
def test_a_worker_that_is_done_does_not_hold_up_the_others(comm):
    """With a window of 1 each step needs to hear of the last from all others, of which two have no more steps."""
    params = np.zeros(N, np.float32)
    with psgd.connect(comm, params, strategy="decentralized", peers="ring", window=1, compress="threshold") as ps:
        for _ in range(50 * (ps.worker % 2)):
            ps.grads[:] = 1.0
            ps.step(2)
        version = ps.version
    assert version <= 100 and ps.bytes_sent > 0
    np.testing.assert_array_equal(params, comm.bcast(params))


@pytest.mark.ranks(3)
def test_a_stop_and_an_evaluation_reach_everyone(comm):
    metrics, params = RunMetrics(3, target_accuracy=0.9), np.zeros(5)
    with psgd.connect(comm, params, strategy="decentralized", peers="all", window=8, lr=0.1, metrics=metrics) as ps:
        steps = 0
        while not ps.stop:
            steps += 1
            if ps.worker == 2 and steps == 5:
                ps.report(0.95, 0.25)
            ps.step(1 + ps.worker, 2.0)
            assert steps < 10_000
    if comm.rank == 0:
        assert (metrics.accuracy, metrics.test_loss, metrics.loss) == (0.95, 0.25, 2.0)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("options", [{"compress": "threshold"}, {}, {"peers": "pairs"}])
def test_a_step_allocates_nothing_of_the_vectors_size(comm, options):
    params = np.zeros(500_000, np.float32)
    with psgd.connect(
        comm, params, strategy="decentralized", rule="momentum", clip_norm=1.0, window=2, **options
    ) as ps:

        def steps():
            for k in range(10):
                ps.grads[k] = 1.0
                ps.step(3)
                comm.Barrier()

        steps()
        tracemalloc.start()
        steps()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100_000
