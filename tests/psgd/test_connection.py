"""`psgd.connect` on real ranks, against sequential simulations and closed forms."""

import os
import time

import numpy as np
import pytest
from harness.simulation import Rule, curved, synchronous

import psgd
from psgd.collectives.mpi.split import split
from psgd.kernels.errors import PeerLostError, UsageError
from psgd.optim import rules

SIZES = [1, 7, 64, 1023, 8193, 100_003]  # below and above what travels inline; fewer elements than servers


def sequential(start, workers, steps, samples):
    """What servers come to, with the rule that these tests take."""
    rule = Rule("momentum", start, decay=0.01)
    return synchronous(
        start, workers, rule, lambda _: 0.1, lambda _: steps, lambda worker, _: samples[worker], served=True
    )[0]


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("n", SIZES)
def test_sync_equals_a_sequential_simulation_bit_for_bit(comm, servers, n):
    if servers >= comm.size:
        pytest.skip("needs a worker")
    samples, steps = [3, 5, 2, 7], 4
    start = np.cos(np.arange(n)).astype(np.float32)
    params = start.copy() if comm.rank == servers else np.full(n, np.nan, np.float32)
    rule = rules.momentum(0.9, 0.01)
    with psgd.connect(comm, params, strategy="sync", servers=servers, lr=0.1, rule=rule, segment_bytes=65536) as ps:
        np.testing.assert_array_equal(ps.params, start)
        for clock in range(steps):
            ps.grads[:] = curved(ps.params, ps.worker, clock)
            ps.step(samples[ps.worker])
            assert ps.version == clock + 1
    expected = sequential(start, comm.size - servers, steps, samples)
    mine = split(n, servers, 16)[comm.rank] if comm.rank < servers else range(n)
    np.testing.assert_array_equal(params[mine.start : mine.stop], expected[mine.start : mine.stop])


@pytest.mark.ranks(1)
@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_a_single_rank_is_sequential_sgd(comm, strategy):
    start = np.cos(np.arange(50)).astype(np.float32)
    params = start.copy()
    rule = rules.momentum(0.9, 0.01)
    with psgd.connect(comm, params, strategy=strategy, lr=0.1, rule=rule) as ps:
        assert (ps.worker, ps.workers, ps.servers) == (0, 1, 0)
        for clock in range(4):
            ps.grads[:] = curved(ps.params, 0, clock)
            ps.step(3)
    np.testing.assert_array_equal(params, sequential(start, 1, 4, [3]))


@pytest.mark.ranks(3, 5)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("n", [1, 100, 8193, 100_003])
def test_async_applies_every_push_once(comm, servers, n):
    steps, workers = 20, comm.size - servers
    params = np.zeros(n, np.float64)
    with psgd.connect(comm, params, strategy="async", servers=servers, lr=1.0, segment_bytes=65536) as ps:
        for _ in range(steps + ps.worker):
            ps.grads[:] = -(2.0 ** (8 * ps.worker))  # the sum's digits in base 256 count each worker's pushes
            ps.step()
            assert np.all(ps.params == ps.params[0])  # no torn read, neither within a shard nor between two
        pushed = steps + ps.worker
    expected = sum((steps + w) * 2.0 ** (8 * w) for w in range(workers))
    if comm.rank >= servers:
        assert pushed == steps + comm.rank - servers
        np.testing.assert_array_equal(params, expected)
    if comm.rank == 0:
        metrics = ps.metrics
        assert metrics.pushes == [steps + w for w in range(workers)]
        assert sum(metrics.staleness.values()) == sum(metrics.pushes) == metrics.steps


@pytest.mark.ranks(3)
def test_staleness_is_version_at_apply_minus_version_pulled(comm):
    """Two workers that take strict turns: each push but the first is applied one version after it was pulled."""
    params = np.zeros(4, np.float32)
    turns = comm.Split(0 if comm.rank == 0 else 1)
    with psgd.connect(comm, params, strategy="async", lr=1.0) as ps:
        for turn in range(10):
            if turn % 2 == ps.worker:
                ps.step()
            turns.Barrier()
    turns.Free()
    if comm.rank == 0:
        assert dict(ps.metrics.staleness) == {0: 1, 1: 9}


@pytest.mark.ranks(5)
@pytest.mark.parametrize("n", [5, 20_000])
def test_first_weights_are_the_first_workers_over_jittered_starts(comm, n):
    for attempt in range(25):
        params = np.full(n, 1.0 + attempt if comm.rank == 2 else -1.0, np.float32)
        time.sleep(np.random.default_rng([attempt, comm.rank]).uniform(0, 0.004))
        with psgd.connect(comm, params, strategy="async", servers=2, lr=1.0) as ps:
            assert np.all(ps.params == 1.0 + attempt), (ps.worker, ps.params[:3])


@pytest.mark.ranks(5)
def test_workers_with_different_numbers_of_batches(comm):
    params = np.zeros(9, np.float32)
    with psgd.connect(comm, params, strategy="sync", lr=1.0) as ps:
        for _ in range(3 * ps.worker):
            ps.grads[:] = -1.0
            ps.step(10)
    if comm.rank > 0:
        np.testing.assert_array_equal(params, 9.0)  # the longest worker's steps: each group moves by the mean, 1


@pytest.mark.ranks(5)
@pytest.mark.parametrize("servers", [1, 2])
def test_clip_norm_is_that_of_the_whole_gradient(comm, servers):
    n = 40_000
    params = np.zeros(n, np.float64)
    with psgd.connect(comm, params, strategy="sync", servers=servers, lr=1.0, clip_norm=3.0) as ps:
        ps.grads[:] = -np.arange(n)
        ps.step(5)
    if comm.rank >= servers:
        direction = np.arange(n) / np.linalg.norm(np.arange(n))
        np.testing.assert_allclose(params, 3.0 * direction, rtol=1e-12)


@pytest.mark.ranks(4)
def test_reduction_sum(comm):
    params = np.zeros(3, np.float32)
    with psgd.connect(comm, params, strategy="sync", lr=1.0, reduction="sum") as ps:
        ps.grads[:] = -(ps.worker + 1)
        ps.step(8)
    if comm.rank > 0:
        np.testing.assert_array_equal(params, 6.0)


@pytest.mark.ranks(3)
def test_schedules_run_in_global_progress(comm):
    """Async with two workers: the rate falls with all samples together, not with a worker's own."""
    params = np.zeros(1, np.float64)
    turns = comm.Split(0 if comm.rank == 0 else 1)
    rate = psgd.optim.schedules.step(1.0, every=40, factor=0.5)
    with psgd.connect(comm, params, strategy="async", lr=rate) as ps:
        for turn in range(8):
            if turn % 2 == ps.worker:
                ps.grads[:] = -1.0
                ps.step(10)
            turns.Barrier()
    turns.Free()
    if comm.rank > 0:
        assert params[0] == 4 * 1.0 + 4 * 0.5


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("samples", [-1, 2.5, "3", None])
def test_wrong_samples(comm, samples):
    params = np.zeros(4, np.float32)
    with psgd.connect(comm, params) as ps:
        ps.grads[:] = -1
        with pytest.raises(UsageError, match="step: samples: expected"):
            ps.step(samples)
        ps.step(np.int32(2))
    if comm.rank == comm.size - 1:
        np.testing.assert_array_equal(params, np.float32(0.1))


@pytest.mark.ranks(1, 2)
def test_outside_the_block(comm):
    params = np.zeros(4, np.float32)
    connection = psgd.connect(comm, params)
    for use in (connection.step, lambda: connection.grads, lambda: connection.worker):
        with pytest.raises(UsageError, match="inside the `with` block only"):
            use()
    with connection as ps:
        ps.step()
    with pytest.raises(UsageError, match="inside the `with` block only"):
        ps.step()
    assert ps.params is params


@pytest.mark.ranks(4)
@pytest.mark.parametrize("n", [10, 50_000])
@pytest.mark.parametrize("strategy", ["sync", "async"])
@pytest.mark.parametrize("shared", ["0", "1"])
def test_a_worker_that_raises_ends_the_block_everywhere(comm, n, strategy, shared):
    os.environ["PSGD_SHARED"] = shared
    params = np.zeros(n, np.float32)
    expected = ZeroDivisionError if comm.rank == 2 else PeerLostError

    def loop():
        with psgd.connect(comm, params, strategy=strategy) as ps:
            for step in range(1000):
                if ps.worker == 1 and step == 3:
                    raise ZeroDivisionError
                ps.step()

    try:
        with pytest.raises(expected) as caught:
            loop()
    finally:
        del os.environ["PSGD_SHARED"]
    if comm.rank != 2:
        assert "worker 1 left psgd.connect with an error" in str(caught.value)


@pytest.mark.ranks(3)
def test_the_callers_communicator_stays_untouched(comm):
    """psgd's traffic is on a duplicate: a wildcard receive of the caller's never eats it."""
    from mpi4py import MPI

    got = np.zeros(1)
    request = comm.Irecv(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
    params = np.zeros(100, np.float32)
    with psgd.connect(comm, params, strategy="async") as ps:
        for _ in range(10):
            ps.step()
    comm.Send(np.array([float(comm.rank)]), (comm.rank + 1) % comm.size, 5)
    request.Wait()
    assert got[0] == (comm.rank - 1) % comm.size


@pytest.mark.ranks(2)
def test_many_connections_leak_no_communicator(comm):
    params = np.zeros(4, np.float32)
    held = [comm.Dup() for _ in range(1700)]  # MPICH has 2047 communicators, and each connection takes two
    for _ in range(250):
        with psgd.connect(comm, params) as ps:
            ps.step()
    for each in held:
        each.Free()


@pytest.mark.ranks(3)
def test_a_server_skips_the_body(comm):
    params = np.zeros(4, np.float32)
    reached = []
    with psgd.connect(comm, params) as ps:
        reached.append("before")
        worker = ps.worker
        reached.append(worker)
        ps.step()
    assert reached == (["before"] if comm.rank == 0 else ["before", comm.rank - 1])
    assert ps.is_server == (comm.rank == 0)


@pytest.mark.ranks(2)
def test_bytes_are_counted_alike_on_both_sides(comm):
    n, steps = 100_000, 3
    params = np.zeros(n, np.float32)
    with psgd.connect(comm, params) as ps:
        for _ in range(steps):
            ps.step()
    counts = comm.allgather((ps.bytes_sent, ps.bytes_received))
    assert counts[0] == counts[1][::-1]
    data = n * 4
    assert counts[1][0] >= (steps + 1) * data  # the start and each push
    assert counts[1][1] >= (steps + 2) * data  # the start, each pull and the end
    assert counts[1][0] < (steps + 1) * data + 2000
