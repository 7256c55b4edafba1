"""EASGD on real ranks against sequential simulations of the definition, and its bounds."""

import os
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from harness import simulation
from harness.simulation import Elastic

import psgd
from psgd import strategies
from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules
from psgd.strategies.easgd import easgd, shared

ORDERS = ["sync", "round-robin", "async", "hogwild"]
STEPS = [10, 7, 3, 12, 9]  # of each worker: with a period of 4, two exchanges, one, none, three, two
SAMPLES = [3, 5, 2, 7, 1]


def samples_of(worker, t):
    """Some steps have none."""
    return 0 if (worker + t) % 5 == 4 else SAMPLES[worker]


def dyadic(x, worker, t):
    """A gradient with few bits, so that sums are exact in any order."""
    i = np.arange(x.size)
    return x * np.where(i % 2, 0.5, 1.0) + ((i + 3 * worker + 5 * t) % 7 - 3) / 4


def curved(x, worker, t):
    ramp = np.arange(1, x.size + 1) / x.size
    return x * ramp + np.sin(ramp * (worker + 1) + t)


def train(comm, start, gradient, steps, local=None, **options):
    """The real thing; returns the connection, and the last own parameters and centre inside the block."""
    params = start.copy() if comm.rank == 0 else np.full_like(start, np.nan)
    with psgd.connect(comm, params, strategy="easgd", **options) as ps:
        np.testing.assert_array_equal(ps.params, start)
        assert ps.params is params and (ps.workers, ps.servers) == (comm.size, 0)
        client = ps._client
        if options.get("easgd_order") not in ("async", "hogwild"):  # there others may have moved it already
            np.testing.assert_array_equal(client.evaluated_params, start)
        for t in range(steps[ps.worker]):
            ps.grads[:] = gradient(ps.params, ps.worker, t)
            ps.step(samples_of(ps.worker, t), 1.0 + ps.worker)
            if local is not None:
                local(client, t)
        own = ps.params.copy()
    return ps, own, params, client


def same_everywhere(comm, vector):
    return all(np.array_equal(vector, each) for each in comm.allgather(vector))


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("n", [7, 4097])
def test_sync_equals_the_definition_to_the_last_bit(comm, period, n):
    size, lr, rho, factor = comm.size, 0.5, 0.25, 0.5
    steps = [min(s, 9) for s in STEPS[:size]]
    start = (np.arange(n) % 5 - 2) / 2
    rule = rules.nesterov(factor)
    options = {"lr": lr, "rule": rule, "rho": rho, "period": period}
    ps, own, params, client = train(comm, start, dyadic, steps, **options)
    crew = [Elastic(w, start, samples_of, dyadic, lr, factor) for w in range(size)]
    centre = simulation.easgd("sync", crew, steps, period, lr * rho)
    assert not np.array_equal(centre, start)
    np.testing.assert_array_equal(own, crew[comm.rank].x)
    np.testing.assert_array_equal(params, centre)
    np.testing.assert_array_equal(client.evaluated_params, centre)
    assert same_everywhere(comm, params)
    for mistake in ("new params", "momentum"):
        crew = [Elastic(w, start, samples_of, dyadic, lr, factor) for w in range(size)]
        wrong = simulation.easgd("sync", crew, steps, period, lr * rho, mistake)
        assert not np.array_equal(wrong, centre), mistake
    assert not np.array_equal(own, params)
    assert ps.bytes_sent == ps.bytes_received > 0


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sync_by_default_pulls_with_beta_of_nine_tenths(comm, dtype):
    steps, period, n = [24, 24, 24], 8, 100_003
    start = np.cos(np.arange(n)).astype(dtype)
    _, own, params, _ = train(comm, start, curved, steps, lr=0.1, momentum=0.9, rule="nesterov")
    crew = [Elastic(w, start.astype(np.float64), samples_of, curved, 0.1, 0.9) for w in range(3)]
    centre = simulation.easgd("sync", crew, steps, period, 0.9 / 3)
    # Each step multiplies an error by less than 2 in all (it is a contraction but for the momentum), and adds some
    # roundings of values under 16.
    bound = 24 * 16 * 16 * np.finfo(dtype).eps
    assert np.abs(params - centre).max() < bound
    assert np.abs(own - crew[comm.rank].x).max() < bound
    assert same_everywhere(comm, params)


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("n", [7, 20_011])
def test_round_robin_equals_the_definition_to_the_last_bit(comm, period, n):
    size, lr, rho, factor, decay = comm.size, 0.3, 1.0, 0.9, 0.01
    steps = STEPS[:size]
    start = np.cos(np.arange(n))
    options = {"lr": lr, "rule": rules.nesterov(factor, decay), "rho": rho, "period": period}
    ps, own, params, client = train(comm, start, curved, steps, easgd_order="round-robin", **options)
    crew = [Elastic(w, start, samples_of, curved, lr, factor, decay) for w in range(size)]
    centre = simulation.easgd("round-robin", crew, steps, period, lr * rho)
    np.testing.assert_array_equal(own, crew[comm.rank].x)
    np.testing.assert_array_equal(params, centre)
    assert same_everywhere(comm, params)
    for mistake in ("new params", "momentum"):
        crew = [Elastic(w, start, samples_of, curved, lr, factor, decay) for w in range(size)]
        assert not np.array_equal(simulation.easgd("round-robin", crew, steps, period, lr * rho, mistake), centre), (
            mistake
        )
    assert client.version == sum(s // period for s in steps)
    sent = comm.allreduce(ps.bytes_sent)
    assert sent == comm.allreduce(ps.bytes_received) > client.version * params.nbytes


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("n", [7, 20_011])
def test_async_equals_the_definition_in_the_order_of_its_exchanges(comm, n):
    size, lr, rho, factor, period, steps = comm.size, 0.3, 1.0, 0.9, 2, [40, 37, 1, 50, 44]
    start = np.cos(np.arange(n))
    places = []

    def record(client, t):
        time.sleep(1e-4 * ((t * 7 + comm.rank * 3) % 5))
        if (t + 1) % period == 0:
            places.append(client.order.version - 1)
            assert client.version == places[-1] + 1

    options = {"lr": lr, "rule": rules.nesterov(factor), "rho": rho, "period": period}
    ps, own, params, client = train(comm, start, curved, steps, record, easgd_order="async", **options)
    order = sorted((place, worker) for worker, some in enumerate(comm.allgather(places)) for place in some)
    assert [place for place, _ in order] == list(range(sum(s // period for s in steps[:size])))
    crew = [Elastic(w, start, samples_of, curved, lr, factor) for w in range(size)]
    centre = simulation.easgd_by_log(crew, [worker for _, worker in order], steps, period, lr * rho)
    np.testing.assert_array_equal(own, crew[comm.rank].x)
    np.testing.assert_array_equal(params, centre)
    assert same_everywhere(comm, params)
    assert client.version == len(order)
    if comm.rank == 0:
        staleness, rest = Counter(), 0
        for worker in range(size):
            mine = [-1, *(place for place, each in order if each == worker)]
            met = [place - before - 1 for before, place in pairwise(mine)]
            for t in range(steps[worker]):
                if t // period < len(met):
                    staleness[met[t // period]] += samples_of(worker, t) > 0
                else:  # never exchanged, and as stale as the centre's age when the worker was done
                    rest += samples_of(worker, t) > 0
        assert not staleness - ps.metrics.staleness
        assert (ps.metrics.staleness - staleness).total() == rest


@pytest.mark.ranks(4)
@pytest.mark.parametrize("order", ["async", "hogwild"])
def test_exchanges_of_many_meet_at_the_centre(comm, order):
    """Without gradients the sum of all stays, and with lost updates each value is still between those before."""
    n = 20_000
    start = np.zeros(n)
    options = {"lr": 1.0, "rho": 0.25, "period": 1, "easgd_order": order}
    _, own, params, _ = train(comm, start, lambda x, w, t: np.where(t == 0, -(w + 1.0), 0.0), [200] * 4, **options)
    total = comm.allreduce(own) + params
    given = sum(w + 1.0 for w in range(4) if samples_of(w, 0))
    if order == "async":
        np.testing.assert_allclose(total, given, rtol=1e-12)
    assert 0 < own.min() <= own.max() < 4 and 0 < params.min() <= params.max() < 4
    assert same_everywhere(comm, params)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("order", ORDERS)
def test_worker_0_counts_all(comm, order):
    steps, period = [10, 7, 3], 2
    params = np.zeros(33, np.float32)
    metrics = RunMetrics(3, samples_per_epoch=20)
    with psgd.connect(comm, params, strategy="easgd", easgd_order=order, period=period, lr=0.1, metrics=metrics) as ps:
        for t in range(steps[ps.worker]):
            ps.grads[:] = 1.0
            ps.step(samples_of(ps.worker, t), float(ps.worker + t))
    if comm.rank:
        return
    made = [[t for t in range(steps[w]) if samples_of(w, t)] for w in range(3)]
    assert metrics.pushes == [len(each) for each in made]
    assert metrics.samples == sum(len(each) * SAMPLES[w] for w, each in enumerate(made))
    assert sum(metrics.staleness.values()) == sum(metrics.pushes)
    assert metrics.lr == 0.1
    assert all(0 < seconds < 60 for seconds in metrics.computed_s)
    assert all(0 <= seconds < 60 for seconds in metrics.waited_s)
    assert np.isfinite(metrics.loss)
    if order == "sync":
        assert dict(metrics.staleness) == {0: sum(metrics.pushes)}
    else:
        assert metrics.steps == sum(s // period for s in steps)
    if order == "round-robin":
        assert metrics.staleness[2] > 0  # between two exchanges of one worker were those of two others


@pytest.mark.ranks(3)
@pytest.mark.parametrize("order", ORDERS)
def test_the_mean_loss_is_over_all_samples(comm, order):
    params, steps = np.zeros(5), [9, 6, 4]
    metrics = RunMetrics(3)
    with psgd.connect(comm, params, strategy="easgd", easgd_order=order, period=3, metrics=metrics) as ps:
        for t in range(steps[ps.worker]):
            ps.step(samples_of(ps.worker, t), float(10 * ps.worker + t))
    if comm.rank == 0:
        pairs = [(samples_of(w, t), 10.0 * w + t) for w in range(3) for t in range(steps[w])]
        expected = sum(s * loss for s, loss in pairs) / sum(s for s, _ in pairs)
        assert metrics.loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("order", ["sync", "round-robin"])
def test_the_rate_goes_by_the_samples_of_all_at_the_last_exchange(comm, order):
    """Each worker moves by its rates alone (a is tiny): they tell which position each step went by."""
    seen = []
    params = np.zeros(1)

    def schedule(samples):
        return 2.0 ** -(samples // 12)  # a period of all is 2 * (1 + 2 + 3) samples

    with psgd.connect(comm, params, strategy="easgd", easgd_order=order, period=2, lr=schedule, rho=1e-9) as ps:
        for _ in range(8):
            ps.grads[:] = -1.0
            before = ps.params[0]
            ps.step(ps.worker + 1)
            seen.append(ps.params[0] - before)
    if order == "sync":
        np.testing.assert_allclose(seen, [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125], atol=1e-6)
    else:  # the centre has met the workers before this one once more
        told = [sum(2 * (w + 1) for w in range(comm.rank + 1)) + 12 * k for k in range(4)]
        np.testing.assert_allclose(seen[2:], [schedule(told[k]) for k in range(3) for _ in range(2)], atol=1e-6)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", ["clip", "sum"])
def test_local_gradients_are_clipped_and_multiplied(comm, order, way):
    options = {"clip_norm": 0.5} if way == "clip" else {"reduction": "sum"}
    params = np.zeros(4)
    with psgd.connect(comm, params, strategy="easgd", easgd_order=order, period=9, lr=1.0, **options) as ps:
        ps.grads[:] = [3.0, 0.0, 4.0, 0.0]
        ps.step(2)
        expected = [-0.3, 0, -0.4, 0] if way == "clip" else [-9.0, 0, -12.0, 0]
        np.testing.assert_allclose(ps.params, expected, rtol=1e-15)
        np.testing.assert_array_equal(ps.grads, [3.0, 0.0, 4.0, 0.0])


@pytest.mark.ranks(3)
@pytest.mark.parametrize("order", ORDERS)
def test_a_reached_target_stops_everyone(comm, order):
    params, steps = np.zeros(3), 0
    with psgd.connect(
        comm,
        params,
        strategy="easgd",
        easgd_order=order,
        period=2,
        metrics=RunMetrics(3, target_accuracy=0.5),
    ) as ps:
        for t in range(100_000):
            if ps.stop:
                break
            if t == 5 and ps.worker == 0:
                ps.report(0.6, 1.0)
            ps.step(1)
            steps += 1
    assert steps < 100_000
    if order == "sync":
        assert comm.allgather(steps) == [6, 6, 6]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("order", ORDERS)
def test_no_steps_leave_worker_0s_start(comm, order):
    for n in (0, 5):
        params = np.full(n, 1.0 + comm.rank, np.float32)
        with psgd.connect(comm, params, strategy="easgd", easgd_order=order):
            pass
        np.testing.assert_array_equal(params, 1.0)


@pytest.mark.ranks(2)
def test_without_shared_memory_two_orders_work(comm):
    before = os.environ.get("PSGD_SHARED")
    os.environ["PSGD_SHARED"] = "0"
    try:
        for order in ("async", "hogwild"):
            with pytest.raises(UsageError, match=rf"{order}.*sync and round-robin.*switched off"):
                psgd.connect(comm, np.zeros(3), strategy="easgd", easgd_order=order).__enter__()
        crew = [Elastic(w, np.ones(64), samples_of, dyadic, 0.5, 0.5) for w in range(2)]
        for order in ("sync", "round-robin"):
            options = {"lr": 0.5, "rho": 0.25, "period": 1, "rule": rules.nesterov(0.5), "easgd_order": order}
            params = train(comm, np.ones(64), dyadic, [5, 4], **options)[2]
            crew = [Elastic(w, np.ones(64), samples_of, dyadic, 0.5, 0.5) for w in range(2)]
            np.testing.assert_array_equal(params, simulation.easgd(order, crew, [5, 4], 1, 0.125))
    finally:
        os.environ.pop("PSGD_SHARED")
        if before is not None:
            os.environ["PSGD_SHARED"] = before


@pytest.mark.ranks(3)
def test_on_several_nodes_the_orders_in_memory_say_which_work(comm):
    from psgd.collectives.mpi import liveness

    real = liveness.ranks_of_node
    liveness.ranks_of_node = lambda c: [rank for rank in range(c.size) if rank % 2 == c.rank % 2]
    try:
        with pytest.raises(UsageError, match=r"async needs all workers on one node.*use sync or round-robin"):
            psgd.connect(comm, np.zeros(3), strategy="easgd", easgd_order="async").__enter__()
        params = train(comm, np.ones(9), dyadic, [4, 4, 4], lr=0.5, period=2, easgd_order="round-robin")[2]
        assert same_everywhere(comm, params)
    finally:
        liveness.ranks_of_node = real


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"easgd_order": "tree"}, "easgd_order: expected one of sync, round-robin, async, hogwild, got 'tree'"),
        ({"easgd_order": None}, "easgd_order: expected"),
        ({"period": 0}, "period: expected a whole number, at least 1, got 0"),
        ({"period": 1.5}, "period: expected a whole number"),
        ({"rho": 0}, "rho: expected a finite number above 0"),
        ({"rho": float("nan")}, "rho: expected a finite number"),
        ({"rho": "big"}, "rho: expected a finite number"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UsageError, match=message):
        strategies.create("easgd", 4, **options)


def test_the_shared_orders_differ_in_the_lock_only():
    assert easgd.ORDERS["async"].func is easgd.ORDERS["hogwild"].func is shared.SharedOrder
    assert (easgd.ORDERS["async"].keywords, easgd.ORDERS["hogwild"].keywords) == ({"locks": True}, {"locks": False})
