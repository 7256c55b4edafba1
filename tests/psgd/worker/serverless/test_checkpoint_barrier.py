"""Checkpoints of strategies whose workers do not keep pace: nothing is lost or counted twice, and a run resumes."""

import time

import numpy as np
import pytest
from harness.peers import nodes_of_two
from harness.resuming import Run, gradient, kept, samples_of

from psgd.checkpoint import vectors
from psgd.kernels.errors import PeerLostError

N = 1031
HOGWILD = {"strategy": "hogwild", "rule": "momentum"}
SHARED = {"strategy": "easgd", "rule": "momentum", "period": 3, "easgd_order": "async"}
RING = {"strategy": "decentralized", "rule": "momentum", "density": 0.02, "peers": "ring", "window": 2}
PAIRS = {"strategy": "decentralized", "rule": "adam", "peers": "pairs"}
FREE = [
    HOGWILD,
    SHARED,
    SHARED | {"easgd_order": "hogwild", "rule": "adam"},
    RING,
    {"strategy": "decentralized", "rule": "momentum", "compress": "topk", "density": 0.02, "compress_sync": 5},
    {"strategy": "decentralized", "rule": "momentum", "compress": "none"},
    PAIRS,
]


def steps_of(worker):
    return 60 - 15 * worker


def jitter(comm):
    random = np.random.default_rng(comm.rank)
    return lambda clock: time.sleep(1e-3 * random.random())


def total_of(clocks):
    return sum(samples_of(k, clock) for k, steps in enumerate(clocks) for clock in range(steps))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("options", FREE)
def test_all_are_cut_together_and_go_on(comm, options):
    """The last to ask is alone: the others have ended, and are cut all the same."""
    asks = {5: False, 58: False} if comm.rank == 0 else {}
    run = Run(comm, N, steps_of, options, every=17, ask=asks, pause=jitter(comm))
    names = [name for name, *_ in run.cuts]
    assert len(names) >= 4 and names == sorted(set(names)) and names == comm.bcast(names)
    for name, clock, state in (run.cuts[0], run.cuts[-1]):
        clocks, others = comm.allgather(clock), comm.allgather(state)
        assert (
            state.facts["samples"] == total_of(clocks) and comm.bcast(state.facts["version"]) == state.facts["version"]
        )
        again = Run(comm, N, steps_of, options, saved=(clock, state), others=others, pause=jitter(comm), every=17)
        assert again.lines == [] and all(each[0] > name for each in again.cuts)
        if comm.rank == 0:
            for counter in ("samples", "pushes"):
                assert getattr(again.metrics, counter) == getattr(run.metrics, counter), counter
            assert sum(again.metrics.staleness.values()) == sum(run.metrics.pushes)
            assert again.metrics.loss == pytest.approx(1.0)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", [HOGWILD, SHARED, *FREE[3:6]])
def test_with_one_that_trains_it_goes_on_with_the_same_bits(comm, options):
    """The others have no steps: they answer while they wait for the end."""

    def steps(worker):
        return 40 if worker == 1 else 0

    run = Run(comm, N, steps, options, every=16)
    assert len(run.cuts) == 2 and (comm.rank == 1 or run.cuts[1][1] == 0)
    _, clock, state = run.cuts[0]
    again = Run(comm, N, steps, options, saved=(clock, state), every=16)
    np.testing.assert_array_equal(again.params, run.params)
    names = set().union(*comm.allgather(set(state.tensors))) - {"applied", "codec.step"}
    for lost in sorted(names):  # all that the training worker or worker 0 has saved tells
        part = kept(state)
        if lost in part.tensors:
            part.tensors[lost].fill(0)
        again = Run(comm, N, steps, options, saved=(clock, part))
        assert not np.array_equal(again.params, run.params), lost


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", [*FREE, HOGWILD | {"nodes": 2}])
def test_save_and_stop_ends_with_what_was_saved(comm, options):
    options, several = {k: v for k, v in options.items() if k != "nodes"}, "nodes" in options
    asks = {20: True} if comm.rank == comm.size - 1 else {}
    if several:
        with nodes_of_two():
            run = Run(comm, N, lambda worker: 10**9, options | {"period": 8}, ask=asks, pause=jitter(comm))
    else:
        run = Run(comm, N, lambda worker: 10**9, options, ask=asks, pause=jitter(comm))
    ((_, clock, state),) = run.cuts
    assert clock == run.clock and run.client.checkpoint.stopping and run.connection.leaving
    states = comm.allgather(state)
    assert state.facts["samples"] == total_of(comm.allgather(clock))
    if not several:  # else a last averaging follows, weighed by samples
        np.testing.assert_allclose(run.params, vectors.weights(states), rtol=1e-5, atol=1e-5)


@pytest.mark.ranks(4)
def test_two_nodes_are_cut_after_an_averaging(comm):
    with nodes_of_two():
        options = HOGWILD | {"period": 5}
        run = Run(comm, N, steps_of, options, every=17, ask={7: False}, pause=jitter(comm))
        names = [name for name, *_ in run.cuts]
        assert len(names) >= 2 and names == comm.bcast(names)
        _, clock, state = run.cuts[0]
        assert ("params" in state.tensors) == (comm.rank < 2)
        states = comm.allgather(state)
        assert state.facts["samples"] == total_of(comm.allgather(clock))
        again = Run(comm, N, steps_of, options, saved=(clock, state), others=states, pause=jitter(comm))
        assert again.lines == [] and again.client.version == run.client.version
    alone = Run(comm, N, steps_of, options, saved=(clock, state), others=states, pause=jitter(comm))
    assert alone.lines == ["the nodes' parameters: all start from the mean"]
    np.testing.assert_array_equal(alone.before, vectors.weights(states))


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", [SHARED | {"rule": "sgd"}, PAIRS | {"rule": "sgd"}])
def test_nothing_is_half_done_at_a_cut(comm, options):
    """Exchanges keep the sum of all parameters (easgd: and the centre); steps alone change it, by a known amount."""

    def fixed(params, worker, clock):
        return gradient(np.ones_like(params), worker, clock)

    def stepped(clocks):
        own = [0.125 * fixed(ones, k, c) for k, steps in enumerate(clocks) for c in range(steps) if samples_of(k, c)]
        return (comm.size + ("easgd_order" in options)) * np.cos(np.arange(N)) - np.sum(own, axis=0)

    def total(states):
        return sum(array for each in states for name, array in each.tensors.items() if name in ("params", "centre"))

    ones = np.ones(N)
    rest = {"pause": jitter(comm), "dtype": np.float64, "gradient": fixed, "every": 9}
    run = Run(comm, N, steps_of, options | {"lr": 0.125}, **rest)
    _, clock, state = run.cuts[1]
    states = comm.allgather(state)
    np.testing.assert_allclose(total(states), stepped(comm.allgather(clock)), rtol=0, atol=1e-11)
    again = Run(comm, N, steps_of, options | {"lr": 0.125}, saved=(clock, state), others=states, **rest)
    _, clock, state = again.cuts[-1]
    np.testing.assert_allclose(total(comm.allgather(state)), stepped(comm.allgather(clock)), rtol=0, atol=1e-11)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "options",
    [
        RING | {"compress": "threshold"},
        {"strategy": "decentralized", "compress": "topk", "density": 0.02},
        {"strategy": "allreduce", "compress": "threshold", "density": 0.02, "rule": "momentum"},
        {"strategy": "allreduce", "compress": "onebit"},
    ],
)
def test_what_was_said_and_what_is_left_are_what_was_put_in_across_a_resume(comm, options):
    """Also with half as many workers, where the first one says what all had left."""
    start = np.cos(np.arange(N))

    def hold(workers, run, put):
        client = run.client
        codec = client.reduce.codec if options["strategy"] == "allreduce" else client.updates.codec
        said, put = workers.bcast(run.params) - start, put + workers.allreduce(run.put)
        np.testing.assert_allclose(said + workers.allreduce(codec.residual), put, rtol=0, atol=1e-11)

    rest = {"pause": jitter(comm), "dtype": np.float64}
    run = Run(comm, N, lambda worker: 20, options, ask={19: True}, **rest)
    _, clock, state = run.cuts[-1]
    states, put = comm.allgather(state), comm.allreduce(run.put)
    hold(comm, run, 0.0)
    again = Run(comm, N, lambda worker: 35, options, saved=(clock, state), others=states, **rest)
    assert again.lines == []
    hold(comm, again, put)
    half = comm.Split(comm.rank % 2, comm.rank)
    if comm.rank % 2 == 0:
        fewer = Run(half, N, lambda worker: 35, options, saved=(clock, None), others=states, **rest)
        assert any("residuals" in line for line in fewer.lines)
        assert fewer.client.version > state.facts["version"]
        hold(half, fewer, put)
    half.Free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "allreduce", "rule": "momentum"},
        {"strategy": "averaging", "rule": "momentum", "period": 2, "average_momentum": False},
        {"strategy": "easgd", "rule": "momentum", "period": 2},
        {"strategy": "easgd", "rule": "adam", "period": 2, "easgd_order": "round-robin"},
        SHARED,
        HOGWILD,
        RING,
        PAIRS,
    ],
)
def test_another_number_of_workers_begins_with_the_runs_weights(comm, options):
    run = Run(comm, N, lambda worker: 24, options, ask={23: True}, pause=jitter(comm))
    _, clock, state = run.cuts[-1]
    states = comm.allgather(state)
    weights = vectors.weights(states)
    half = comm.Split(comm.rank % 2, comm.rank)
    if comm.rank % 2 == 0:
        fewer = Run(half, N, lambda worker: 30, options, saved=(clock, None), others=states, pause=jitter(comm))
        np.testing.assert_array_equal(fewer.before, weights)
        assert bool(fewer.lines) == (options["strategy"] != "allreduce")
        since = sum(samples_of(k, step) for k, begun in enumerate(half.allgather(clock)) for step in range(begun, 30))
        if half.rank == 0:
            assert fewer.metrics.samples == max(each.facts["samples"] for each in states) + since
            assert fewer.client.version > max(each.facts["version"] for each in states)
    half.Free()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", [HOGWILD, SHARED, RING, PAIRS])
def test_who_waits_at_a_cut_hears_of_one_that_fails(comm, options):
    def failing(clock):
        if comm.rank == 1 and clock == 3:
            time.sleep(0.2)
            raise RuntimeError("mine")
        time.sleep(1e-3)

    start, kind = time.monotonic(), RuntimeError if comm.rank == 1 else PeerLostError
    with pytest.raises(kind):
        Run(comm, N, lambda worker: 1000, options, ask={3: False}, pause=failing)
    assert time.monotonic() - start < 20
