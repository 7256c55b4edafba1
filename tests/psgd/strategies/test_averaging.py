"""`averaging` on real ranks, against a sequential simulation in NumPy and against training on one machine."""

import contextlib
import os
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from harness.simulation import Rule, averaging, curved

import psgd
from psgd.kernels.errors import PeerLostError, UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules
from psgd.strategies.averaging import AveragingWorker


def samples_of(worker, clock):
    """Unequal, at times none."""
    return (3 * worker + 5 * clock + 2) % 7


def steps_of(worker):
    return 7 + 3 * worker


def rate(samples):
    return 0.2 / (1.0 + samples / 50.0)


RULES = {"momentum": lambda: rules.momentum(0.9, 0.01), "adam": rules.adam}


def by_hand(start, workers, method, period, **options):
    """The simulation with the rules of these tests."""
    each = [Rule(method, start, 0.01 if method == "momentum" else 0.0) for _ in range(workers)]
    return averaging(start, workers, each, period, rate, steps_of, samples_of, **options)


def run(comm, start, method, **options):
    params = start.copy() if comm.rank == 0 else np.full_like(start, np.nan)
    with psgd.connect(comm, params, strategy="averaging", rule=RULES[method](), lr=rate, **options) as ps:
        np.testing.assert_array_equal(ps.params, start)
        assert ps.overlap(3) is None
        for clock in range(steps_of(ps.worker)):
            samples = samples_of(ps.worker, clock)
            ps.grads[:] = curved(ps.params, ps.worker, clock) if samples else np.nan
            ps.step(samples, 1.0)
    return ps.metrics, params


OUTER = {"outer_lr": 0.7, "outer_momentum": 0.9}


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("method", ["momentum", "adam"])
@pytest.mark.parametrize(
    ("n", "options"),
    [
        (1, {"period": 1}),
        (7, {"period": 3}),
        (100_003, {"period": 4}),
        (1023, {"period": 3, "average_momentum": False}),
        (1023, {"period": 5, "local_from": 60}),
        (1023, {"period": 3, **OUTER}),
        (1023, {"period": 3, "outer_lr": 0.5}),
        (1023, {"period": 3, "outer_momentum": 0.5}),
        (65, {"period": 4, "local_from": 25.5, "average_momentum": False, **OUTER}),
        (1023, {"period": 100}),
    ],
)
def test_it_equals_a_sequential_simulation_bit_for_bit(comm, n, method, options):
    start = np.cos(np.arange(n)).astype(np.float32 if n % 2 else np.float64)
    metrics, params = run(comm, start, method, **options)
    expected, steps, samples = by_hand(start, comm.size, method, **options)
    np.testing.assert_array_equal(params, expected)
    if comm.rank == 0:
        assert (metrics.steps, metrics.samples) == (steps, samples)
        taken = [sum(samples_of(k, clock) > 0 for clock in range(steps_of(k))) for k in range(comm.size)]
        assert metrics.pushes == taken and dict(metrics.staleness) == {0: sum(taken)}


@pytest.mark.ranks(3)
def test_float64_clipping_and_the_sum_of_workers(comm):
    start = np.cos(np.arange(801.0))
    _, params = run(comm, start, "momentum", period=3, clip_norm=2.0, reduction="sum")
    np.testing.assert_array_equal(params, by_hand(start, 3, "momentum", period=3, clip=2.0, factor=3.0)[0])
    assert np.abs(params - by_hand(start, 3, "momentum", period=3, factor=3.0)[0]).max() > 1e-3


@pytest.mark.ranks(3)
def test_over_messages_all_workers_have_the_same_bits(comm):
    """The order of a sum is another there: each averaging differs by rounding, of which contracting steps keep less."""
    start = np.cos(np.arange(30_011))
    os.environ["PSGD_SHARED"] = "0"
    try:
        _, params = run(comm, start, "momentum", period=3)
    finally:
        del os.environ["PSGD_SHARED"]
    np.testing.assert_allclose(params, by_hand(start, 3, "momentum", period=3)[0], rtol=0, atol=1e-13)
    np.testing.assert_array_equal(params, comm.bcast(params))


@pytest.mark.ranks(2, 4)
def test_averaging_every_step_equals_one_machine_on_the_joined_batch(comm):
    """To the last bit on dyadic numbers: equal shards, powers of two, no optimizer state."""
    n, batch, steps = 9, 4, 5
    data = np.random.default_rng(0).integers(-8, 9, (steps, comm.size, batch, n)).astype(np.float64)
    params = np.zeros(n)
    with psgd.connect(comm, params, strategy="averaging", period=1, lr=0.5) as ps:
        for step in range(steps):
            ps.grads[:] = (params - data[step, comm.rank]).mean(0)
            ps.step(batch)
    alone = np.zeros(n)
    for step in range(steps):
        alone -= 0.5 * (alone - data[step].reshape(-1, n)).mean(0)
    np.testing.assert_array_equal(params, alone)


@pytest.mark.ranks(3)
def test_unequal_shards_equal_the_joined_batch_by_their_samples(comm):
    """To rounding: 20 contracting steps, each of a few ulp of values below 4."""
    n, sizes = 50, [3, 5, 11]
    data = np.random.default_rng(0).normal(size=(20, sum(sizes), n))
    first = sum(sizes[: comm.rank])
    params = np.zeros(n)
    with psgd.connect(comm, params, strategy="averaging", period=1, lr=0.3) as ps:
        for batch in data:
            ps.grads[:] = (params - batch[first : first + sizes[comm.rank]]).mean(0)
            ps.step(sizes[comm.rank])
    alone = np.zeros(n)
    for batch in data:
        alone -= 0.3 * (alone - batch).mean(0)
    np.testing.assert_allclose(params, alone, rtol=0, atol=2e-14)


@pytest.mark.ranks(4)
def test_weights_are_the_samples_since_the_last_averaging(comm):
    """A closed form: worker k goes k + 1 a step; the second averaging has other samples than the first."""
    params = np.zeros(3)
    with psgd.connect(comm, params, strategy="averaging", period=2, lr=1.0) as ps:
        for samples in (0, 4 * ps.worker, 3 - ps.worker, 2 * (3 - ps.worker)):
            ps.grads[:] = -(ps.worker + 1.0)
            ps.step(samples)
    one = sum(4 * k * (k + 1) for k in range(4)) / sum(4 * k for k in range(4))
    two = sum(3 * (3 - k) * 2 * (k + 1) for k in range(4)) / sum(3 * (3 - k) for k in range(4))
    np.testing.assert_allclose(params, one + two, rtol=1e-15)


@pytest.mark.ranks(2, 3)
def test_equal_parameters_are_their_average_and_do_not_drift(comm):
    start = np.random.default_rng(5).normal(size=1000).astype(np.float32)
    params = start.copy()
    with psgd.connect(comm, params, strategy="averaging", period=1, lr=1.0) as ps:
        for step in range(300):
            ps.step(3 + step % 5)
    np.testing.assert_array_max_ulp(params, start, 0 if comm.size == 2 else 1)  # 3 x / 3 may be x's neighbour


@pytest.mark.ranks(3)
def test_nothing_is_communicated_between_averagings(comm):
    """Workers take their steps one after the other: a step that waited for another worker would hang."""
    params = np.zeros(1000, np.float32)
    with psgd.connect(comm, params, strategy="averaging", period=5, lr=0.1) as ps:
        for _ in range(2):
            for turn in range(3):
                if turn == ps.worker:
                    for _ in range(4):
                        ps.grads[:] = -1.0 - ps.worker
                        ps.step(2)
                comm.Barrier()
            ps.step(0)
            assert ps.version in (4, 8)
    np.testing.assert_allclose(params, 2 * 4 * 0.1 * 2.0, rtol=1e-6)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", [{}, OUTER])
def test_workers_without_any_step(comm, options):
    params = np.full(4, comm.rank, np.float64)
    with psgd.connect(comm, params, strategy="averaging", period=3, lr=1.0, **options) as ps:
        for _ in range(4 * (ps.worker == 1)):
            ps.grads[:] = -1.0
            ps.step(2)
    np.testing.assert_array_equal(params, comm.bcast(params))
    if not options:
        np.testing.assert_array_equal(params, 4.0)  # worker 0's start and worker 1's steps


@pytest.mark.ranks(2)
def test_outer_momentum_goes_on_as_nesterov_does(comm):
    """A closed form for a constant drift of d a period: u_t = d (1 + m + ... + m^(t-1)), x moves by lr (d + m u_t)."""
    lr, m, d = 0.7, 0.9, -0.25
    params = np.zeros(3)
    with psgd.connect(
        comm, params, strategy="averaging", period=2, lr=0.125, outer_lr=lr, outer_momentum=m, local_from=9
    ) as ps:
        for _ in range(3):  # of 4 samples each: until 12 samples are known, plainly and every step
            ps.grads[:] = 1.0
            ps.step(2)
        np.testing.assert_array_equal(params, -0.375)
        for _ in range(8):
            ps.grads[:] = 1.0
            ps.step(2)
    x = -0.375 + sum(lr * (d + m * d * (1 - m**t) / (1 - m)) for t in range(1, 5))
    np.testing.assert_allclose(params, x, rtol=1e-13)


@pytest.mark.ranks(3)
def test_worker_0_counts_and_a_stop_reaches_all_at_the_same_step(comm):
    metrics = RunMetrics(3, samples_per_epoch=10_000, target_accuracy=0.9)
    params = np.zeros(5, np.float32)
    steps = 0
    with psgd.connect(comm, params, strategy="averaging", period=4, metrics=metrics, lr=0.25) as ps:
        while not ps.stop:
            steps += 1
            if ps.worker == 0 and steps == 6:
                ps.report(0.95, 0.5)
            ps.step(2 + ps.worker, 1.0 + ps.worker + steps % 2)
            assert ps.version == steps
        assert ps.waited_s > 0
    assert steps == 8
    if comm.rank == 0:
        assert metrics.pushes == [8, 8, 8] and dict(metrics.staleness) == {0: 24}
        assert (metrics.samples, metrics.steps, metrics.lr) == (72, 8, 0.25)
        assert metrics.loss == pytest.approx((2 * 1.5 + 3 * 2.5 + 4 * 3.5) / 9)
        assert min(metrics.waited_s) > 0 and min(metrics.computed_s) > 0


@pytest.mark.ranks(4)
@pytest.mark.parametrize("shared", ["0", "1"])
def test_a_worker_that_raises_ends_the_block_everywhere(comm, shared):
    os.environ["PSGD_SHARED"] = shared
    params = np.zeros(50_000, np.float32)

    def loop():
        with psgd.connect(comm, params, strategy="averaging", period=3) as ps:
            for step in range(1000):
                if ps.worker == 1 and step == 4:
                    raise ZeroDivisionError
                ps.step()

    try:
        with pytest.raises(ZeroDivisionError if comm.rank == 1 else PeerLostError):
            loop()
    finally:
        del os.environ["PSGD_SHARED"]


@pytest.mark.ranks(2)
def test_a_step_allocates_nothing_of_the_vectors_size(comm):
    params = np.zeros(500_000, np.float32)
    with psgd.connect(
        comm, params, strategy="averaging", rule="momentum", clip_norm=1.0, period=2, outer_lr=0.7, outer_momentum=0.9
    ) as ps:
        ps.step(3)
        ps.step(3)
        tracemalloc.start()
        for _ in range(4):
            ps.step(3 + ps.worker)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "period: expected a whole number, at least 1"),
        ({"period": 2.0}, "period: expected a whole number"),
        ({"average_momentum": 1}, "average_momentum: expected true or false"),
        ({"local_from": -1}, "local_from: expected"),
        ({"outer_lr": 0}, "outer_lr: expected a finite number above 0"),
        ({"outer_momentum": 1.0}, r"outer_momentum: expected a number in \[0, 1\)"),
        ({"perid": 3}, "strategy averaging: expected"),
    ],
)
def test_wrong_options(comm, options, message):
    with pytest.raises(UsageError, match=message):
        psgd.connect(comm, np.zeros(4, np.float32), strategy="averaging", **options)


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("complete", range(6))
def test_what_others_have_averaged_is_taken_over_as_a_whole_or_not_at_all(complete, outer):
    """Who sends it may die in between. Without an outer step the newest are sums, else what came of them."""

    class Sender:
        rank = 1
        left = complete

        def Bcast(self, array, root):
            if not self.left:
                raise PeerLostError("dead")
            self.left -= 1
            array[...] = 6

    taken = []
    worker = object.__new__(AveragingWorker)
    worker.params, worker._averaged, worker._sums = np.zeros(3), (np.zeros(3),), [np.zeros(3), np.zeros(3)]
    worker._old, worker._velocity = (np.zeros(3), np.zeros(3)) if outer else (None, None)
    worker._known = worker._base = worker._divisor = worker.version = 0
    worker._own = worker._steps = 1
    worker._counts_together, worker._optimizer = True, SimpleNamespace(version=0, lr=0.1)
    worker._metrics, worker.stop = RunMetrics(2), False
    caught_up = []
    worker._votes = SimpleNamespace(newest=[0] * 4, catch_up=caught_up.append)
    worker._rounds = SimpleNamespace(version=0, active=0, stop=0, all_done=0, take=lambda *words: taken.append(words))
    whole = complete >= (5 if outer else 4)
    with contextlib.nullcontext() if whole else pytest.raises(PeerLostError):
        worker.share(Sender(), 0, takes=True)
    assert (
        len(taken) == len(caught_up) == whole
        and worker._known == worker._optimizer.version == worker.version == 6 * whole
    )
    assert worker._own == worker._steps == 1 - whole
    assert worker.params.tolist() == [(6.0 if outer else 1.0) * whole] * 3  # a sum of 6, divided by 6
    assert worker._averaged[0].tolist() == [1.0 * whole] * 3
    if outer:
        assert worker._old.tolist() == worker._velocity.tolist() == [6.0 * whole] * 3
