"""The strategy hogwild: against sequential simulations wherever the order is made to be known, and free races."""

import contextlib
import os
import time

import numpy as np
import pytest
from harness import simulation
from harness.oracle import same_bits
from harness.peers import SAMPLES, nodes_of_two, start_of
from harness.simulation import curved

import psgd
from psgd import strategies
from psgd.collectives.mpi.node import address_of
from psgd.kernels.errors import PeerLostError, UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.rules import Rule
from psgd.worker.serverless import shared_parameters

RULES = ["sgd", "momentum", "nesterov", "adam"]


def decaying(samples):
    return 0.5 / (1.0 + samples / 16.0)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", RULES)
def test_one_active_worker_is_sequential_sgd_bit_for_bit(comm, name):
    n, active = 1023, comm.size - 1
    for dtype, clip in ((np.float32, 0.0), (np.float64, 2.0)):
        params = start_of(comm, n, dtype)
        expected = np.cos(np.arange(n)).astype(dtype)
        rule = simulation.Rule(name, expected, 0.01)
        options = {"rule": name, "weight_decay": 0.01, "clip_norm": clip, "lr": decaying}
        with psgd.connect(comm, params, strategy="hogwild", **options) as ps:
            for clock in range(7 if ps.worker == active else 0):
                ps.grads[:] = curved(ps.params, active, clock)
                ps.step(SAMPLES[clock % 5])
                assert ps.version == clock + 1
        for clock in range(7):
            drawn = sum(SAMPLES[c % 5] for c in range(clock))
            rule.step(expected, curved(expected, active, clock), decaying(drawn), clip=clip)
        np.testing.assert_array_equal(params, expected)


@pytest.mark.ranks(3, 5)
@pytest.mark.parametrize("name", RULES)
def test_a_known_order_with_stale_gradients_equals_its_simulation_bit_for_bit(comm, name):
    """Gradients of what a worker read after its last step, applied in an order that barriers enforce."""
    n = 257
    log = np.random.default_rng(5).integers(0, comm.size, 30).tolist()
    params, metrics = start_of(comm, n), RunMetrics(comm.size)
    with psgd.connect(comm, params, strategy="hogwild", rule=name, lr=decaying, metrics=metrics) as ps:
        read = ps.params.copy()
        comm.Barrier()
        for clock, worker in enumerate(log):
            if worker == ps.worker:
                ps.grads[:] = curved(read, worker, clock)
                kept = ps.grads.copy()
                ps.step(SAMPLES[worker], loss=0.25 * clock)
                np.testing.assert_array_equal(ps.grads, kept)
                assert ps.version == clock + 1
                read = ps.params.copy()
            comm.Barrier()
    start = np.cos(np.arange(n)).astype(np.float32)
    ruled = [simulation.Rule(name, start) for _ in range(comm.size)]
    w, staleness = simulation.hogwild(start, log, ruled, decaying, SAMPLES)
    np.testing.assert_array_equal(params, w)
    if comm.rank == 0:
        assert metrics.pushes == [log.count(worker) for worker in range(comm.size)]
        assert metrics.staleness == {tau: staleness.count(tau) for tau in set(staleness)}
        samples = sum(SAMPLES[worker] for worker in log)
        assert (metrics.samples, metrics.steps) == (samples, 30)
        assert metrics.loss == sum(0.25 * clock * SAMPLES[worker] for clock, worker in enumerate(log)) / samples


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("n", [1, 64, 100_003])
def test_racing_workers_that_write_elements_of_their_own_lose_nothing(comm, n):
    """All at once, into the same cache lines. Dense rules would write other workers' elements too, if only zeros."""
    mine, workers = slice(comm.rank, None, comm.size), comm.size

    def update(params, grad, state, lr, scale, step):
        if params.size:
            params[mine] -= lr * scale * grad[mine] + state[0][mine] / step
            state[0][mine] += grad[mine]

    def steps(worker):
        return 40 + 20 * worker

    params = start_of(comm, n, np.float64)
    rule = Rule("own elements", lambda params: (np.zeros_like(params),), update)
    with psgd.connect(comm, params, strategy="hogwild", rule=rule, lr=0.125) as ps:
        for clock in range(steps(ps.worker)):
            ps.grads[:] = 7.0
            ps.grads[mine] = np.sin(ps.params[mine] + clock)
            ps.step()
    expected = np.cos(np.arange(n)).astype(np.float64)
    for worker in range(workers):
        w, state = expected[worker::workers].copy(), np.zeros(len(range(worker, n, workers)))
        for clock in range(steps(worker)):
            grad = np.sin(w + clock)
            w -= 0.125 * 1.0 * grad + state / (clock + 1)
            state += grad
        expected[worker::workers] = w
    np.testing.assert_array_equal(params, expected)


@pytest.mark.ranks(2, 4)
def test_others_updates_are_seen_in_place_while_computing(comm):
    params = np.zeros(100, np.float32)
    with psgd.connect(comm, params, strategy="hogwild", lr=1.0) as ps:
        assert ps.params is not params
        assert address_of(ps.params) % 64 == 0
        seen = ps.params
        if ps.worker == 0:
            ps.grads[:] = -np.arange(1, 101)
            ps.step()
        limit = time.monotonic() + 20
        while seen[-1] == 0 and time.monotonic() < limit:  # no step of this worker's, no message
            pass
        np.testing.assert_array_equal(seen, np.arange(1, 101))
        assert ps.worker == 0 or not ps.grads.any()
    np.testing.assert_array_equal(params, np.arange(1, 101))


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("several", [False, True])
def test_pushes_samples_and_losses_are_counted_exactly(comm, several):
    """Workers with different numbers of steps, one without any, steps without samples between them."""
    pushes = [150, 0, 333, 20, 77][: comm.size]
    params, epochs = start_of(comm, 1000), []
    metrics = RunMetrics(comm.size, lambda m, event: epochs.append(m.epoch) if event == "epoch" else None, 200)
    with nodes_of_two() if several else contextlib.nullcontext():
        connection = psgd.connect(comm, params, strategy="hogwild", lr=1e-3, metrics=metrics, period=10)
        with connection as ps:
            for clock in range(pushes[ps.worker]):
                ps.grads[:] = curved(ps.params, ps.worker, clock)
                ps.step(0, 99.0)
                ps.step(SAMPLES[ps.worker], 0.5 * ps.worker)
    assert same_bits(comm, params)
    assert np.isfinite(params).all()
    if comm.rank == 0:
        samples = sum(p * s for p, s in zip(pushes, SAMPLES, strict=False))
        assert metrics.pushes == pushes
        assert (metrics.samples, metrics.steps) == (samples, sum(pushes))
        assert sum(metrics.staleness.values()) == sum(pushes)
        assert min(metrics.staleness) >= 0
        assert max(metrics.staleness) <= sum(pushes)
        assert epochs
        assert epochs == sorted(set(epochs))
        assert epochs[-1] == samples // 200
        assert all(seconds > 0 for seconds in metrics.computed_s)


@pytest.mark.ranks(2)
def test_the_mean_loss_is_that_of_all_samples(comm):
    params, metrics = np.zeros(4), RunMetrics(2)
    with psgd.connect(comm, params, strategy="hogwild", metrics=metrics) as ps:
        for _ in range(50 + 50 * ps.worker):
            ps.step(1 + ps.worker, 2.0**-ps.worker)
    if comm.rank == 0:
        assert metrics.loss == (50 * 1 * 1.0 + 100 * 2 * 0.5) / (50 + 200)


@pytest.mark.ranks(2, 5)
def test_stop_reaches_all(comm):
    for several in (False, True):
        params, metrics = np.zeros(10), RunMetrics(comm.size, target_accuracy=0.9)
        with (
            nodes_of_two() if several else contextlib.nullcontext(),
            psgd.connect(comm, params, strategy="hogwild", metrics=metrics, period=3) as ps,
        ):
            for clock in range(10**9):
                ps.step(1, 1.0)
                if ps.worker == 0 and clock == 30:
                    assert not ps.stop
                    ps.report(0.95, 0.5)
                if ps.stop:
                    break
        assert clock < 10**9 - 1
        assert comm.rank > 0 or (metrics.accuracy, metrics.test_loss) == (0.95, 0.5)


@pytest.mark.ranks(2)
def test_an_evaluation_elsewhere_is_counted_at_the_end(comm):
    metrics = RunMetrics(2)
    with psgd.connect(comm, np.zeros(1), strategy="hogwild", metrics=metrics) as ps:
        if ps.worker == 1:
            ps.report(0.5, 0.75)
    assert comm.rank == 1 or (metrics.accuracy, metrics.test_loss) == (0.5, 0.75)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("where", ["computing", "at the end", "at once"])
def test_an_exception_ends_all(comm, several, where):
    """On a worker that is first on its node and on one that is not, while others step, or wait at the end."""
    with psgd.connect(comm, np.zeros(100), strategy="hogwild", period=3) as ps:
        ps.step()
    for bad in (0, comm.size - 1):
        began = time.monotonic()
        with pytest.raises(KeyError if comm.rank == bad else PeerLostError) as caught:
            fail(comm, bad, where, several)
        assert time.monotonic() < began + 10
        assert comm.rank == bad or f"worker {bad}" in str(caught.value)
        comm.Barrier()


def fail(comm, bad, where, several):
    limit = time.monotonic() + 20
    with nodes_of_two() if several else contextlib.nullcontext():
        connection = psgd.connect(comm, np.zeros(100), strategy="hogwild", period=3)
        with connection as ps:
            if ps.worker == bad:
                for _ in range(0 if where == "at once" else 20):
                    ps.step()
                time.sleep(0.05)
                raise KeyError("boom")
            while where != "at the end":
                ps.step()
                assert time.monotonic() < limit


@pytest.mark.ranks(2, 3)
def test_memory_that_cannot_be_shared_is_one_error(comm):
    os.environ["PSGD_SHARED"] = "0" if comm.rank == 1 else "1"
    try:
        with (
            pytest.raises(
                UsageError, match=r"hogwild on rank 1: expected memory shared by ranks .*PSGD_SHARED=0.*doctor"
            ),
            psgd.connect(comm, np.zeros(5), strategy="hogwild"),
        ):
            pass
        params = np.zeros(5)
        if comm.size == 2:  # nothing to share within nodes of one worker
            with nodes_of_two(), psgd.connect(comm, params, strategy="hogwild", lr=1.0) as ps:
                ps.grads[:] = -1 - ps.worker
                ps.step()
            np.testing.assert_array_equal(params, 1.5)
    finally:
        del os.environ["PSGD_SHARED"]


@pytest.mark.ranks(2)
def test_memory_that_cannot_be_reached_or_had_is_one_error(comm):
    real = shared_parameters.shared_memory.attach, shared_parameters.shared_memory.SharedArray

    def refuse(*arguments):
        raise OSError("no room")

    try:
        shared_parameters.shared_memory.attach = lambda *arguments: None
        with (
            pytest.raises(UsageError, match=r"rank 1: .* that of rank 0 cannot be reached"),
            psgd.connect(comm, np.zeros(5), strategy="hogwild"),
        ):
            pass
        shared_parameters.shared_memory.attach = real[0]
        shared_parameters.shared_memory.SharedArray = refuse
        with (
            pytest.raises(UsageError, match=r"rank 0: .*no room"),
            psgd.connect(comm, np.zeros(5), strategy="hogwild"),
        ):
            pass
    finally:
        shared_parameters.shared_memory.attach, shared_parameters.shared_memory.SharedArray = real


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "period: expected a whole number, at least 1, got 0"),
        ({"period": 1.5}, "period: expected a whole number, at least 1, got 1.5"),
        ({"count_lost": 1}, "count_lost: expected true or false, got 1"),
    ],
)
def test_options(options, message):
    with pytest.raises(UsageError, match=message):
        strategies.create("hogwild", 2, **options)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lost_updates(comm, dtype):
    """None with one writer; exactly those that a stale copy written back undoes; never more than were made."""
    n = 1000
    with psgd.connect(comm, np.zeros(n, dtype), strategy="hogwild", count_lost=True) as ps:
        client = ps._client
        ps.grads[:] = 1
        for _ in range(20 if ps.worker == comm.size - 1 else 0):
            ps.step()
    assert client.lost == 0
    with psgd.connect(comm, np.zeros(n, dtype), strategy="hogwild", count_lost=True) as ps:
        client = ps._client
        ps.grads[:] = 1
        tally = client._memory.tally
        assert tally.itemsize == ps.params.itemsize
        stale = tally[100:107].copy()
        comm.Barrier()
        if ps.worker == 0:
            for _ in range(3):
                ps.step()
        comm.Barrier()
        if ps.worker == 1:
            ps.step()
            tally[100:107] = stale + 1  # had worker 1 read before worker 0 wrote
        comm.Barrier()
    assert client.lost == 3 * 7
    with psgd.connect(comm, np.zeros(n, dtype), strategy="hogwild", count_lost=True) as ps:
        client = ps._client
        ps.grads[:] = 1
        for _ in range(500):
            ps.step()
    assert 0 <= client.lost <= 500 * (comm.size - 1) * n  # each element holds at least one worker's
    assert len(set(comm.allgather(client.lost))) == 1


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "nesterov", "adam"])
def test_workers_with_disjoint_supports_lose_nothing(comm, dtype, rule):
    """All at once, into the same cache lines: each element has the bits of its worker's own steps alone."""
    n, steps = 20_011, 60
    mine = slice(comm.rank, None, comm.size)
    params = start_of(comm, n, np.dtype(dtype))
    options = {"strategy": "hogwild", "rule": rule, "lr": 0.03125, "clip_norm": 1e9}
    with psgd.connect(comm, params, count_lost=True, **options) as ps:
        client = ps._client
        comm.Barrier()
        for clock in range(steps):
            ps.grads[:] = 0
            ps.grads[mine] = np.sin(ps.params[mine] + clock)
            ps.step()
    assert client.lost == 0
    expected = np.cos(np.arange(n)).astype(dtype)
    for worker in range(comm.size):
        w = expected[worker :: comm.size].copy()
        optimizer = OptimizerOptions(rules.create(rule), schedules.constant(0.03125)).create(w)
        for clock in range(steps):
            optimizer.take(np.sin(w + w.dtype.type(clock)), 1.0, 0)
        expected[worker :: comm.size] = w
    np.testing.assert_array_equal(params, expected)


DIES = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import psgd
from psgd import strategies
from psgd.kernels.errors import PeerLostError
comm, began = MPI.COMM_WORLD, time.monotonic()
try:
    with psgd.connect(comm, np.zeros(100), strategy="hogwild") as ps:
        for _ in range(50):
            ps.step()
        if ps.worker == 1:
            os.kill(os.getpid(), signal.SIGKILL)
except BaseException as error:
    print(f"rank {comm.rank}: {type(error).__name__}", flush=True)
time.sleep(1)
os._exit(3)
"""


@pytest.mark.parametrize("ulfm", [False, True])
def test_a_killed_rank_ends_the_job(job, ulfm):
    result = job(3, DIES, ulfm=ulfm, timeout=20)
    assert result.returncode != 0
    if ulfm:
        assert "rank 0: PeerLostError" in result.stdout or "rank 2: PeerLostError" in result.stdout
