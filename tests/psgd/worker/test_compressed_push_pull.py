"""Compressed pushes and pulls on real ranks, against a simulation of workers and servers in one process."""

import time

import numpy as np
import pytest
from harness import compressed_simulation, simulation

import psgd
from psgd.kernels import codecs
from psgd.kernels.errors import PeerLostError
from psgd.metrics.run_metrics import RunMetrics

N, LR, STEPS = 2003, 0.3, 11


def curved(params, worker, clock):
    return simulation.curved(params, worker, clock, waves=40)


def samples_of(worker, clock):
    return (3 * worker + 5 * clock + 2) % 4


def simulated(start, workers, servers, name, density, factor, **options):
    fixed = name, density, factor, LR, STEPS, samples_of, curved
    return compressed_simulation.synchronous(start, workers, servers, *fixed, **options)


def trained(comm, start, servers, name, density, factor, **options):
    params, seen = start.copy(), None
    rule = psgd.optim.rules.momentum(factor) if factor else "sgd"
    options = {"strategy": "sync", "compress": name, "density": density, "lr": LR, "rule": rule, **options}
    with psgd.connect(comm, params, servers=servers, **options) as ps:
        for clock in range(STEPS):
            ps.grads[:] = curved(ps.params, ps.worker, clock)
            ps.step(samples_of(ps.worker, clock))
        seen = ps.params.copy()
    return params, seen, ps


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("name", codecs.CODECS)
def test_sync_equals_a_simulation_bit_for_bit(comm, name):
    for dtype, servers, factor in (("float32", 1, 0.0), ("float64", 1, 0.75), ("float32", 2, 0.75)):
        workers = comm.size - servers
        start = np.random.default_rng(1).normal(size=N).astype(dtype)
        final, seen = simulated(start, workers, servers, name, 0.05, factor)
        params, mine, ps = trained(comm, start, servers, name, 0.05, factor)
        if ps.mesh.role == "worker":
            assert params.tobytes() == final.tobytes()
            assert mine.tobytes() == seen[ps.mesh.index].tobytes()
            assert (
                name != "threshold" or mine.tobytes() != final.tobytes()
            )  # answers leave something out, the end does not


@pytest.mark.ranks(3)
def test_full_synchronization(comm):
    start = np.random.default_rng(2).normal(size=N).astype(np.float32)
    final, seen = simulated(start, 2, 1, "threshold", 0.05, 0.75, whole=lambda clock: (clock + 1) % 3 == 0)
    params, mine, ps = trained(comm, start, 1, "threshold", 0.05, 0.75, compress_sync=3)
    if ps.mesh.role == "worker":
        assert params.tobytes() == final.tobytes()
        assert mine.tobytes() == seen[ps.mesh.index].tobytes()


@pytest.mark.ranks(3)
def test_a_warm_up_of_the_whole_run_is_the_dense_strategy(comm):
    """With momentum of one worker, as that of two workers' own is not that of their mean where samples differ."""
    start = np.random.default_rng(3).normal(size=N)
    for factor, servers in ((0.0, 1), (0.75, 2)):
        wanted = trained(comm, start, servers, "none", None, factor)[0]
        for name in codecs.CODECS:
            params, _, ps = trained(comm, start, servers, name, 0.05, factor, compress_warmup=1e9)
            if ps.mesh.role == "worker":
                np.testing.assert_allclose(params, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_momentum_that_outgrows_the_codec(comm, strategy):
    """The gradient can be encoded, what momentum makes of it cannot: left out and counted, and nobody waits for it."""
    params, metrics = np.zeros(N, np.float32), RunMetrics(2)
    options = {"strategy": strategy, "compress": "threshold", "rule": "momentum", "lr": 1e-31, "metrics": metrics}
    with psgd.connect(comm, params, **options) as ps:
        for _ in range(20):
            ps.grads[:] = 3e29
            ps.step(4)
    if comm.rank == 0:
        assert min(metrics.dropped) > 0
        assert [a + b for a, b in zip(metrics.dropped, metrics.pushes, strict=True)] == [20, 20]
    assert np.isfinite(params).all()


@pytest.mark.ranks(3, 5)
@pytest.mark.parametrize("strategy", ["async", "softsync", "ssp"])
def test_other_orders_find_the_minimum(comm, strategy):
    """With all of a gradient said sooner or later, x - target goes to 0; small shards, one of them empty."""
    for size in (2003, 17):
        target, params = np.linspace(-2, 2, size), np.zeros(size)
        options = {"compress": "topk", "density": 0.2, "servers": 2 if comm.size == 5 else 1}
        with psgd.connect(comm, params, strategy=strategy, lr=0.05, **options) as ps:
            for _ in range(300):
                ps.grads[:] = ps.params - target
                ps.step(4)
        if ps.mesh.role == "worker":
            assert np.abs(params - target).max() < 0.02
        assert len(set(comm.allgather(params.tobytes())[options["servers"] :])) == 1


@pytest.mark.ranks(3)
def test_a_gradient_that_is_not_finite_is_left_out(comm):
    """The worker keeps pace, its residual and its momentum stay, and nobody's parameters are touched by it."""
    params, metrics = np.ones(N, np.float32), RunMetrics(2)
    options = {"strategy": "sync", "compress": "threshold", "density": 0.05, "rule": "momentum"}
    with psgd.connect(comm, params, lr=0.1, metrics=metrics, **options) as ps:
        for clock in range(8):
            ps.grads[:] = curved(ps.params, ps.worker, clock)
            ps.step(5, 1.0)
        client = ps._client
        kept = [client._before.velocity, *(shard.codec.residual for shard in client.transport.coded)]
        before = [each.copy() for each in kept]
        ps.grads[:] = 3.0
        ps.grads[ps.worker] = (np.nan, -np.inf)[ps.worker]
        ps.step(5, 1.0)
        assert all(np.array_equal(new, old) for new, old in zip(kept, before, strict=True))
    if comm.rank == 0:
        assert metrics.dropped == [1, 1]
        assert metrics.pushes == [8, 8] and metrics.samples == 80
    assert np.isfinite(params).all()


@pytest.mark.ranks(3)
def test_an_exception_ends_all(comm):
    def train():
        with psgd.connect(comm, np.zeros(N), strategy="async", compress="threshold") as ps:
            for clock in range(50):
                if clock == 20 and ps.worker == 1:
                    raise ZeroDivisionError
                ps.step()

    with pytest.raises(ZeroDivisionError if comm.rank == 2 else PeerLostError):
        train()
    comm.Barrier()


@pytest.mark.ranks(3)
def test_bytes_are_counted(comm):
    sizes, size = {}, 100_003
    for name in ("none", "threshold"):
        params, rng = np.zeros(size, np.float32), np.random.default_rng(comm.rank)
        share = None if name == "none" else 0.01
        with psgd.connect(comm, params, strategy="sync", compress=name, density=share) as ps:
            for _ in range(60):
                ps.grads[:] = rng.normal(size=size)
                ps.step()
        sizes[name] = ps.bytes_sent, ps.bytes_received
        mine = comm.allgather(sizes[name])
        if name == "threshold":  # whole: where all start, from worker 0, and the end
            assert mine[0][1] == mine[1][0] + mine[2][0]
            assert mine[0][0] == mine[1][1] + mine[2][1]
    whole = 4 * size * (2 if comm.rank < 2 else 1)
    assert sizes["threshold"][0] - whole < sizes["none"][0] / 20


@pytest.mark.ranks(3)
def test_what_a_worker_has_left_to_send_is_not_sent_by_one_that_was_done(comm, tmp_path):
    """Worker 0 is at its end before the checkpoint: worker 1's residual stays with worker 1."""

    def run(steps, resume):
        options = {"compress": "threshold", "density": 0.01, "checkpoint_dir": tmp_path, "resume": resume}
        with psgd.connect(comm, np.ones(N), strategy="async", rule="sgd", lr=LR, **options) as ps:
            steps *= ps.worker  # a server leaves here
            residual = ps._client.transport.coded[0].codec.residual.copy()
            for clock in range(steps):
                ps.grads[:] = curved(ps.params, ps.worker, clock)
                if clock == steps - 1:
                    ps.save(stop=True)
                ps.step(3)
                if ps.stop:
                    break
                time.sleep(0.01)  # worker 0 is done meanwhile
            return residual
        return None

    run(30, resume=False)
    residual = run(0, resume=True)
    if comm.rank > 0:
        assert residual.any() == (comm.rank == 2)
