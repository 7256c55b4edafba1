"""`allreduce` on real ranks, against a sequential simulation in NumPy, a server, and larger batches."""

import contextlib
import gc
import os
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from harness.simulation import Rule, curved, synchronous

import psgd
from psgd.kernels.errors import PeerLostError, UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.nn import models
from psgd.optim import rules
from psgd.strategies import buckets
from psgd.strategies.allreduce import AllreduceWorker

SIZES = [1, 7, 100_003]  # inline and in registered memory; fewer elements than ranks


@contextlib.contextmanager
def overlapping(bucket_bytes=64 << 10, progress="1", shared="1"):
    """Connections made in here have a progress thread and small buckets."""
    before = buckets.BUCKET_BYTES
    buckets.BUCKET_BYTES = bucket_bytes
    os.environ.update(PSGD_PROGRESS=progress, PSGD_SHARED=shared)
    try:
        yield
    finally:
        buckets.BUCKET_BYTES = before
        del os.environ["PSGD_PROGRESS"], os.environ["PSGD_SHARED"]


def samples_of(worker, clock):
    """Unequal, at times none; every fifth step alike on all workers."""
    return 8 if clock % 5 == 4 else (3 * worker + 5 * clock + 2) % 7


def steps_of(worker):
    return 6 + 2 * worker


def rate(samples):
    return 0.2 / (1.0 + samples / 50.0)


def by_hand(start, workers, rate, every=1, **options):
    """The simulation with the rule of these tests."""
    rule = Rule("momentum", start, decay=0.01)
    return synchronous(start, workers, rule, rate, steps_of, samples_of, every=every, **options)


def run(comm, start, overlap=False, cut=None, **options):
    """A whole run; returns what `connect` gave and the final parameters."""
    params = start.copy() if comm.rank == 0 else np.full_like(start, np.nan)
    options = {"rule": rules.momentum(0.9, 0.01), "lr": rate} | options
    with psgd.connect(comm, params, strategy="allreduce", **options) as ps:
        np.testing.assert_array_equal(ps.params, start)
        for clock in range(steps_of(ps.worker)):
            samples = samples_of(ps.worker, clock)
            on_ready = ps.overlap(samples) if overlap else None
            if samples or not clock % 2:
                ps.grads[:] = curved(ps.params, ps.worker, clock)
            else:
                ps.grads[:] = np.nan  # without samples it does not count
            if on_ready is not None:
                stop = start.size
                while stop > 0:
                    on_ready(range(max(0, stop - cut), stop))
                    stop -= cut
            ps.step(samples, 1.0)
        version = ps.version
    return ps, params, version


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_it_equals_a_sequential_simulation_bit_for_bit(comm, n, dtype):
    start = np.cos(np.arange(n)).astype(dtype)
    ps, params, _ = run(comm, start)
    expected, version, samples = by_hand(start, comm.size, rate)
    np.testing.assert_array_equal(params, expected)
    if comm.rank == 0:
        assert (ps.metrics.steps, ps.metrics.samples) == (version, samples)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("every", [2, 4, 50])
def test_accumulated_gradients_equal_a_sequential_simulation(comm, every):
    """Also what is not full at the end of a worker's data."""
    start = np.cos(np.arange(20_011)).astype(np.float32)
    _, params, _ = run(comm, start, accumulate=every)
    np.testing.assert_array_equal(params, by_hand(start, comm.size, rate, every)[0])


@pytest.mark.ranks(3)
@pytest.mark.parametrize("clip", [0.5, 1e9])
def test_clipping_goes_by_the_whole_norm(comm, clip):
    start = np.cos(np.arange(5003)).astype(np.float32)
    _, params, _ = run(comm, start, clip_norm=clip, reduction="sum")
    np.testing.assert_array_equal(params, by_hand(start, comm.size, rate, clip=clip, factor=3.0)[0])


@pytest.mark.ranks(4)
@pytest.mark.parametrize("n", [1000, 100_003])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.3}])
def test_it_equals_sync_with_a_server(comm, n, options):
    """To the last bit: both sum in worker order."""
    start = np.cos(np.arange(n)).astype(np.float32)
    served = start.copy()
    with psgd.connect(comm, served, strategy="sync", rule="adam", lr=0.01, **options) as ps:
        for clock in range(6):
            ps.grads[:] = curved(ps.params, ps.worker, clock)
            ps.step(samples_of(ps.worker, clock))
    served = comm.bcast(served, 1)
    workers = comm.Split(0 if comm.rank < 3 else 1, comm.rank)
    if comm.rank < 3:
        params = start.copy()
        with psgd.connect(workers, params, strategy="allreduce", rule="adam", lr=0.01, **options) as ps:
            for clock in range(6):
                ps.grads[:] = curved(ps.params, ps.worker, clock)
                ps.step(samples_of(ps.worker, clock))
        np.testing.assert_array_equal(params, served)
    workers.Free()


@pytest.mark.ranks(3)
def test_over_messages_all_workers_have_the_same_bits(comm):
    """The order of a sum is another there: sums of 3 float64 differ by rounding, 2 ulp each of 12 contracting steps."""
    start = np.cos(np.arange(30_011))
    os.environ["PSGD_SHARED"] = "0"
    try:
        _, params, _ = run(comm, start)
    finally:
        del os.environ["PSGD_SHARED"]
    np.testing.assert_allclose(params, by_hand(start, 3, rate)[0], rtol=0, atol=1e-14 * 10)
    np.testing.assert_array_equal(params, comm.bcast(params))


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("every", [2, 4])
def test_accumulating_k_steps_equals_a_batch_of_k_times_the_size(comm, every):
    """Exactly: all values are small multiples of powers of two. Parameters stay unchanged in between."""
    n, batch = 9, 8
    data = np.random.default_rng(comm.rank).integers(-8, 9, (5 * every * batch, n)).astype(np.float64)
    results = []
    for size, k in ((batch, every), (batch * every, 1)):
        params = np.zeros(n)
        with psgd.connect(comm, params, strategy="allreduce", lr=0.5 * comm.size / 4, accumulate=k) as ps:
            for step, first in enumerate(range(0, len(data), size)):
                before = params.copy()
                ps.grads[:] = (params - data[first : first + size]).mean(0)
                ps.step(size)
                assert np.array_equal(params, before) == ((step + 1) % k != 0)
                assert ps.version == (step + 1) // k
        results.append(params)
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=0 if comm.size == 2 else 1e-14)
    assert np.abs(results[0]).max() > 0.1


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(("cut", "every"), [(30_000, 1), (777, 2), (100_003, 1)])
@pytest.mark.parametrize("shared", ["1", "0"])
def test_overlapping_changes_no_bit(comm, cut, every, shared):
    start = np.cos(np.arange(100_003)).astype(np.float32)
    with overlapping(shared=shared):
        _, params, _ = run(comm, start, overlap=comm.rank != 1, cut=cut, accumulate=every)  # worker 1 does not use it
    if shared == "1" or comm.size == 2:
        np.testing.assert_array_equal(params, by_hand(start, comm.size, rate, every)[0])
    np.testing.assert_array_equal(params, comm.bcast(params))


@pytest.mark.ranks(2)
def test_buckets_are_reduced_while_backward_goes_on(comm):
    """The first bucket's sum is there before `step`, and only there."""
    n = 40_000
    params = np.zeros(n, np.float32)
    with overlapping(), psgd.connect(comm, params, strategy="allreduce", lr=1.0) as ps:
        ps.grads[:] = comm.rank + 1
        on_ready = ps.overlap(4)
        on_ready(range(n - 10_000, n))
        client = ps._client
        assert not client._buckets._launched
        on_ready(range(n - 20_000, n - 10_000))
        assert client._buckets._launched == 1
        client._buckets._calls[0].Wait()
        assert np.all(ps.grads[-13_000:] == 4 * 3) and np.all(ps.grads[: n - 20_000] == comm.rank + 1)
        on_ready(range(n - 20_000))
        assert client._buckets._launched == 3
        ps.step(4)
    np.testing.assert_array_equal(params, -1.5)


@pytest.mark.ranks(2)
def test_overlap_is_none_where_it_cannot_pay(comm):
    big, small = np.zeros(40_000, np.float32), np.zeros(100, np.float32)
    for params, progress in ((big, "0"), (small, "1")):
        with overlapping(progress=progress), psgd.connect(comm, params, strategy="allreduce") as ps:
            assert ps.overlap(3) is None
    with overlapping(), psgd.connect(comm, big, strategy="allreduce", accumulate=2) as ps:
        assert ps.overlap(0) is None
        assert ps.overlap(3) is None  # this step only sums
        ps.step(3)
        assert ps.overlap(3) is not None
        ps.step(3)  # it need not be called
    for rank in range(2):  # a thread on one rank only
        with overlapping(progress=str(int(comm.rank == rank))), psgd.connect(comm, big, strategy="allreduce") as ps:
            assert ps.overlap(3) is None


@pytest.mark.ranks(2)
def test_misuse_of_overlap_is_named_and_changes_nothing(comm):
    n = 40_000
    params = np.zeros(n, np.float32)
    with overlapping(), psgd.connect(comm, params, strategy="allreduce", lr=1.0) as ps:
        ps.grads[:] = 1.0
        ps.overlap(3)  # given up before anything was final
        on_ready = ps.overlap(4)
        with pytest.raises(UsageError, match="a range that ends at 40000"):
            on_ready(range(n // 2))
        on_ready(range(100, n))
        with pytest.raises(UsageError, match="a range that ends at 100 "):
            on_ready(range(100, n))
        with pytest.raises(UsageError, match="already being reduced"):
            ps.overlap(4)
        with pytest.raises(UsageError, match="the 4 samples"):
            ps.step(5)
        on_ready(range(100))
        ps.step(4)
        with pytest.raises(UsageError, match="before each gradient"):
            on_ready(range(n))
        ps.step(0)
    np.testing.assert_array_equal(params, -1.0)


@pytest.mark.ranks(2)
def test_a_model_trains_alike_with_and_without_overlap(comm):
    model = models.build("mlp", (12, 12), 10)
    rng = np.random.default_rng(comm.rank)
    x = rng.normal(size=(5, 16, 144)).astype(np.float32)
    y = rng.integers(0, 10, (5, 16))
    results = []
    for hide in (True, False):
        params = model.init(3)
        with overlapping(16 << 10), psgd.connect(comm, params, strategy="allreduce", rule="momentum") as ps:
            model.bind(ps.params, ps.grads)
            ctx = model.context(16)
            for batch in range(5):
                on_ready = ps.overlap(16) if hide else None
                assert (on_ready is not None) == hide
                loss = model.gradient(ctx, x[batch], y[batch], on_ready)
                ps.step(16, loss)
        results.append(params)
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0] - model.init(3)).max() > 1e-3


@pytest.mark.ranks(4)
@pytest.mark.parametrize("shared", ["0", "1"])
@pytest.mark.parametrize("progress", ["0", "1"])
def test_a_worker_that_raises_ends_the_block_everywhere(comm, shared, progress):
    n = 50_000
    params = np.zeros(n, np.float32)

    def loop():
        with psgd.connect(comm, params, strategy="allreduce") as ps:
            for step in range(1000):
                on_ready = ps.overlap(1)
                if on_ready is not None:
                    on_ready(range(n // 2, n))
                if ps.worker == 1 and step == 3:
                    raise ZeroDivisionError
                ps.step(1)

    expected = ZeroDivisionError if comm.rank == 1 else PeerLostError
    with overlapping(progress=progress, shared=shared), pytest.raises(expected):
        loop()


KILLED = """
import os, signal
import numpy as np, psgd
from mpi4py import MPI
from psgd.strategies import buckets
buckets.BUCKET_BYTES = 1 << 16
params = np.zeros(50_000, np.float32)
with psgd.connect(MPI.COMM_WORLD, params, strategy="allreduce") as ps:
    for step in range(10**9):
        ps.overlap(1)
        if ps.worker == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        ps.step(1)
"""


def test_a_killed_worker_ends_the_job(job):
    assert job(3, KILLED, env={"PSGD_PROGRESS": "1"}, timeout=50).returncode != 0


@pytest.mark.ranks(3)
def test_worker_0_counts_and_a_stop_reaches_all_at_the_same_step(comm):
    metrics = RunMetrics(3, samples_per_epoch=10_000, target_accuracy=0.9)
    params = np.zeros(5, np.float32)
    steps = 0
    with psgd.connect(comm, params, strategy="allreduce", metrics=metrics, lr=0.25) as ps:
        while not ps.stop:
            steps += 1
            if ps.worker == 0 and steps == 4:
                ps.report(0.95, 0.5)
            if ps.worker == 2 and steps == 2:
                ps.report(0.5, 1.5)
            ps.step(2 + ps.worker, 1.0 + ps.worker)
            if ps.worker == 0 and steps == 3:
                assert (metrics.accuracy, metrics.test_loss) == (0.5, 1.5)
        assert ps.waited_s > 0
    assert steps == 4 and ps.metrics is metrics
    if comm.rank == 0:
        assert metrics.pushes == [4, 4, 4] and dict(metrics.staleness) == {0: 12}
        assert (metrics.samples, metrics.steps, metrics.lr) == (36, 4, 0.25)
        assert metrics.loss == pytest.approx((2 * 1 + 3 * 2 + 4 * 3) / 9)
        assert min(metrics.waited_s) > 0 and min(metrics.computed_s) > 0


@pytest.mark.ranks(2)
@pytest.mark.parametrize("every", [1, 2])
def test_a_step_allocates_nothing_of_the_vectors_size(comm, every):
    params = np.zeros(500_000, np.float32)
    with psgd.connect(comm, params, strategy="allreduce", rule="momentum", clip_norm=1.0, accumulate=every) as ps:
        ps.step(3)
        ps.step(3)
        tracemalloc.start()
        for _ in range(4):
            ps.step(3 + ps.worker)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_wrong_options(comm, value):
    with pytest.raises(UsageError, match="accumulate: expected"):
        psgd.connect(comm, np.zeros(4, np.float32), strategy="allreduce", accumulate=value)


@pytest.mark.ranks(2)
def test_connections_leave_nothing_behind(comm):
    params = np.zeros(4, np.float32)
    gc.collect()
    files = []
    for _ in range(6):
        with psgd.connect(comm, params, strategy="allreduce") as ps:
            ps.step()
            inner = ps._client._comm
        assert inner._freed
        files.append(len(os.listdir("/proc/self/fd")))
    assert files[-1] <= files[1]  # fewer where the garbage of earlier tests goes meanwhile


@pytest.mark.parametrize("complete", range(5))
def test_a_state_is_taken_over_as_a_whole_or_not_at_all(complete):
    """Who sends it may die in between."""

    class Sender:
        rank = 1

        def __init__(self):
            self.left = complete

        def Bcast(self, array, root):
            if not self.left:
                raise PeerLostError("dead")
            self.left -= 1
            array[...] = 1

    taken = []
    worker = object.__new__(AllreduceWorker)
    worker.params, worker.version, worker.stop, worker._applied = np.zeros(3), 0, False, 0
    worker._optimizer = SimpleNamespace(arrays={"momentum": np.zeros(3)}, version=0)
    worker._buckets, worker._metrics = SimpleNamespace(unit=0), RunMetrics(2)
    caught_up = []
    worker._votes = SimpleNamespace(newest=[0] * 4, catch_up=caught_up.append)
    worker._optimizer.lr = 0.1
    worker._rounds = SimpleNamespace(version=0, active=0, stop=0, all_done=0, take=lambda *words: taken.append(words))
    with contextlib.nullcontext() if complete == 4 else pytest.raises(PeerLostError):
        worker.share(Sender(), 0, takes=True)
    everything = [*worker.params, *worker._optimizer.arrays["momentum"], worker.version, worker._optimizer.version]
    assert {*everything, worker._applied, worker._buckets.unit, len(taken), len(caught_up)} == {int(complete == 4)}
