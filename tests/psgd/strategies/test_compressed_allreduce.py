"""`allreduce` with compressed updates on real ranks, against a simulation of all workers in one process."""

import numpy as np
import pytest
from harness import compressed_simulation, simulation

import psgd
from psgd import strategies
from psgd.kernels import codecs
from psgd.kernels.errors import ContractError, UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules

N = 1003


def curved(params, worker, clock):
    return simulation.curved(params, worker, clock, waves=40)


def samples_of(worker, clock):
    return (3 * worker + 5 * clock + 2) % 7


def steps_of(worker):
    return 9 + 2 * worker


def rate(samples):
    return 0.3 / (1 + samples / 100)


def simulated(start, workers, name, density, factor, warmup=0, sync=0):
    every = rate, steps_of, samples_of, curved
    return compressed_simulation.allreduce(start, workers, name, density, factor, *every, warmup, sync)


def trained(comm, start, name, density, factor=0.0, **options):
    params = start.copy()
    rule = rules.momentum(factor) if factor else "sgd"
    options = {"strategy": "allreduce", "compress": name, "density": density, "lr": rate, "rule": rule, **options}
    with psgd.connect(comm, params, **options) as ps:
        for clock in range(steps_of(ps.worker)):
            ps.grads[:] = curved(ps.params, ps.worker, clock)
            ps.step(samples_of(ps.worker, clock))
        client = ps._client
    return params, client, ps


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", codecs.CODECS)
def test_it_equals_a_simulation_bit_for_bit(comm, name, dtype):
    start = np.random.default_rng(1).normal(size=N).astype(dtype)
    for factor in (0.0, 0.75):
        wanted, version = simulated(start, comm.size, name, 0.05, factor)
        params, client, _ = trained(comm, start, name, 0.05, factor)
        assert params.tobytes() == wanted.tobytes()
        assert client.version == version
    assert np.abs(params - start).max() > 0.01


@pytest.mark.ranks(3)
def test_warm_up_and_full_synchronization(comm):
    start = np.random.default_rng(2).normal(size=N).astype(np.float32)
    for options in ({"compress_warmup": 25}, {"compress_sync": 3}, {"compress_warmup": 20, "compress_sync": 5}):
        first, every = options.get("compress_warmup", 0), options.get("compress_sync", 0)
        wanted, _ = simulated(start, comm.size, "threshold", 0.05, 0.5, first, every)
        params, _, _ = trained(comm, start, "threshold", 0.05, 0.5, **options)
        np.testing.assert_allclose(params, wanted, rtol=1e-5, atol=1e-6)  # the dense sum has its own order
        bits = comm.allgather(params.tobytes())
        assert len(set(bits)) == 1


@pytest.mark.ranks(3)
def test_a_warm_up_has_the_momentum_of_the_dense_strategy(comm):
    """With equal samples the mean of momenta is the momentum of the mean."""
    results = {}
    for name in ("none", *codecs.CODECS):
        params = np.linspace(-1, 1, N)
        more = {} if name == "none" else {"compress": name, "compress_warmup": 1e9}
        with psgd.connect(comm, params, strategy="allreduce", rule=rules.momentum(0.75, 0.01), **more) as ps:
            for clock in range(9):
                ps.grads[:] = curved(ps.params, ps.worker, clock)
                ps.step(4)
        results[name] = params
    for name in codecs.CODECS:
        np.testing.assert_allclose(results[name], results["none"], rtol=1e-12, atol=1e-13)


@pytest.mark.ranks(2)
def test_options_without_a_codec(comm):
    for option in ({"density": 0.5}, {"compress_warmup": 3}, {"compress_sync": 3}):
        with pytest.raises(UsageError, match="expected compress=threshold, onebit or topk with it"):
            psgd.connect(comm, np.zeros(8), strategy="allreduce", **option)


@pytest.mark.ranks(2, 3)
def test_a_density_of_one_is_the_dense_strategy(comm):
    """Nothing may be divided twice or counted twice on the way."""
    start = np.random.default_rng(3).normal(size=N)
    sparse, _, _ = trained(comm, start, "topk", 1.0)
    dense, _, _ = trained(comm, start, "none", None)
    np.testing.assert_allclose(sparse, dense, rtol=1e-6, atol=1e-6)  # values travel as float32


@pytest.mark.ranks(3)
def test_a_gradient_that_is_not_finite_is_left_out_everywhere(comm):
    """As if that step had not been: same weights, residuals and momentum, and the skip is counted."""
    start = np.random.default_rng(4).normal(size=N).astype(np.float32)
    results = []
    for bad in (False, True):
        params, metrics = start.copy(), RunMetrics(comm.size)
        options = {"strategy": "allreduce", "compress": "threshold", "density": 0.05, "rule": "momentum"}
        with psgd.connect(comm, params, lr=0.1, metrics=metrics, **options) as ps:
            for clock in range(8):
                if bad and clock in (0, 4):
                    ps.grads[:] = 1.0
                    ps.grads[17] = (np.nan, np.inf)[clock // 4] if ps.worker == 1 else 2.0
                    ps.step(5, 1.0)
                ps.grads[:] = curved(ps.params, ps.worker, clock)
                ps.step(5, 1.0)
            residual = ps._client.reduce.codec.residual.copy()
        results.append((params.tobytes(), residual.tobytes()))
        if comm.rank == 0:
            assert metrics.dropped == ([0, 2, 0] if bad else [0, 0, 0])
            assert metrics.pushes == [8] * 3 and metrics.samples == 120
    assert results[0] == results[1]


@pytest.mark.ranks(3)
def test_nothing_is_lost(comm):
    """What was applied and what all residuals hold are what was put in, exactly where no sum rounds."""
    params, size = np.zeros(4096), 4096
    with psgd.connect(comm, params, strategy="allreduce", compress="threshold", density=0.01, lr=1.0) as ps:
        rng, put = np.random.default_rng(comm.rank), np.zeros(size)
        for _ in range(20):
            ps.grads[:] = rng.integers(-64, 64, size) * (3 / 64)  # a third of it is dyadic; so is tau, a float32
            put -= ps.grads / 3
            ps.step(1)
        left = ps._client.reduce.codec.residual.copy()
    total, lefts = np.empty_like(put), np.empty_like(put)
    comm.Allreduce(put, total)
    comm.Allreduce(left, lefts)
    np.testing.assert_allclose(params + lefts, total, rtol=1e-12, atol=1e-11)
    assert np.abs(lefts).max() > 0.1


@pytest.mark.ranks(2)
def test_replicas_that_differ_are_noticed(comm):
    def train():
        params = np.zeros(N, np.float32)
        with psgd.connect(comm, params, strategy="allreduce", compress="threshold", density=0.05) as ps:
            for clock in range(600):
                ps.grads[:] = curved(ps.params, ps.worker, clock)
                if clock == 3 and ps.worker == 1:
                    ps.params[5] += 1
                ps.step(1)

    with pytest.raises(ContractError, match="the ranks' arrays differ after"):
        train()


@pytest.mark.ranks(2)
def test_bytes_are_counted(comm):
    """About density n (1 + 8.08 bits) a step at 1 %, against 32 n: 350 times fewer, once tau has settled."""
    sizes, size, steps = {}, 100_003, 60
    for name in ("none", "threshold"):
        params, rng = np.zeros(size, np.float32), np.random.default_rng(comm.rank)
        share = None if name == "none" else 0.01
        with psgd.connect(comm, params, strategy="allreduce", compress=name, density=share) as ps:
            for _ in range(steps):
                ps.grads[:] = rng.normal(size=size)
                ps.step()
        sizes[name] = ps.bytes_sent
        assert sum(comm.allgather(ps.bytes_sent)) == sum(comm.allgather(ps.bytes_received))
    assert sizes["none"] > steps * 4 * size
    assert sizes["none"] / 600 < sizes["threshold"] < sizes["none"] / 60


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", [n for n, each in strategies.STRATEGIES.items() if not each.compressible])
def test_strategies_that_send_no_gradients(comm, name):
    with pytest.raises(UsageError, match=f"compress: strategy {name} averages parameters, expected one of sync, async"):
        psgd.connect(comm, np.zeros(8, np.float32), strategy=name, compress="topk")


@pytest.mark.ranks(1)
def test_a_single_rank_sends_nothing(comm):
    with pytest.raises(UsageError, match="compress: a single rank sends nothing that could be compressed: omit it"):
        psgd.connect(comm, np.ones(7), compress="topk", rule="momentum")
