"""Gradients of several steps as one: a run with microbatches ends with the bits of a run with whole batches.

Data are small integers and sizes powers of two, or sums that are exact, so nothing may differ by rounding.
"""

import shutil

import numpy as np
import pytest

import psgd
from psgd.checkpoint.folder import folders
from psgd.kernels.errors import UsageError
from psgd.worker.accumulation import GradientSum

N, MICRO = 9, 3

TOGETHER = [
    {"strategy": "sync", "rule": "momentum"},
    {"strategy": "sync", "rule": "adam", "clip_norm": 4.0},
    {"strategy": "sync", "rule": "momentum", "compress": "threshold", "density": 0.5},
    {"strategy": "sync", "compress": "topk", "density": 0.5},
    {"strategy": "sync", "compress": "onebit"},
    {"strategy": "ssp", "staleness": 0},
    {"strategy": "allreduce", "rule": "momentum"},
    {"strategy": "averaging", "rule": "momentum", "period": 2},
    {"strategy": "averaging", "period": 2, "outer_momentum": 0.5},
    {"strategy": "easgd", "period": 2},
    {"strategy": "easgd", "period": 2, "easgd_order": "round-robin"},
]
"""Strategies whose runs repeat bit for bit."""
FREE = [
    {"strategy": "async", "rule": "momentum"},
    {"strategy": "softsync", "softsync": 1},
    {"strategy": "ssp", "staleness": 2},
    {"strategy": "async", "compress": "threshold", "density": 0.5},
    {"strategy": "hogwild"},
    {"strategy": "easgd", "period": 2, "easgd_order": "async"},
    {"strategy": "decentralized", "compress": "none"},
    {"strategy": "decentralized", "compress": "threshold", "density": 0.5},
]
"""With one worker that trains they do too."""
POWERS = [  # of two, as all totals are then: it multiplies by 1 / samples
    {"strategy": "allreduce", "compress": "threshold", "density": 0.5},
    {"strategy": "allreduce", "rule": "momentum", "compress": "onebit"},
]


def batches_of(worker, sizes, whole):
    """This worker's data in microbatches of these sizes, or in groups of `MICRO` of them."""
    data = np.random.default_rng(worker).integers(-8, 9, (sum(sizes), N)).astype(np.float64)
    parts = np.split(data, np.cumsum(sizes)[:-1])
    if not whole:
        return parts
    return [np.concatenate(parts[at : at + MICRO]) for at in range(0, len(parts), MICRO)]


def gradient(params, batch):
    """The mean over the samples of the gradient of half the squared distance, rounded to eighths: sums are exact."""
    near = np.round(params * 8) / 8
    return (near - batch).sum(0) / len(batch)


def sendable(comm, options):
    """The options without a codec on a single rank, which sends nothing and refuses one."""
    return {name: value for name, value in options.items() if comm.size > 1 or name not in ("compress", "density")}


def run(comm, options, sizes_of, whole):
    """Final parameters, and what `connect` gave."""
    params, options = np.zeros(N), sendable(comm, options)
    accumulate = {} if whole else {"accumulate": MICRO}
    with psgd.connect(comm, params, lr=0.25, **options, **accumulate) as ps:
        batches = batches_of(ps.worker, sizes_of(ps.worker), whole) if sizes_of(ps.worker) else []
        for batch in batches[ps.clock :]:
            before, version = ps.params.copy(), ps.version
            ps.grads[:] = gradient(ps.params, batch) if len(batch) else np.nan
            ps.step(len(batch), float(len(batch)))
            if not whole and ps.clock % MICRO and options["strategy"] != "hogwild":
                assert ps.version == version, "nothing is applied in between"
                np.testing.assert_array_equal(ps.params, before)
    return params, ps


def compare(comm, options, sizes_of):
    whole, one = run(comm, options, sizes_of, True)
    parts, other = run(comm, options, sizes_of, False)
    if not one.is_server:
        np.testing.assert_array_equal(parts, whole)
        assert np.abs(whole).max() > 0.1
    if comm.rank == 0:
        assert (other.metrics.samples, other.metrics.steps) == (one.metrics.samples, one.metrics.steps)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("options", TOGETHER)
def test_it_equals_one_step_on_the_whole(comm, options):
    """Sizes differ, some steps have no samples, the last group is not full, and workers end at different steps."""
    compare(comm, options, lambda worker: [4, 8, 4, 2, 0, 5, 1, 1, 3, 0, 0, 0, 16, 4][: 14 - 3 * worker])


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("options", FREE)
def test_it_equals_one_step_on_the_whole_with_one_that_trains(comm, options):
    compare(comm, options, lambda worker: [4, 8, 4, 2, 0, 5, 1, 1, 3, 16, 4] if worker == 0 else [])


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", POWERS)
def test_it_equals_one_step_on_the_whole_of_a_power_of_two(comm, options):
    compare(comm, options, lambda worker: [4, 8, 4, 2, 0, 2, 1, 1, 2, 16][: 10 - 3 * worker])


@pytest.mark.ranks(4)
def test_it_equals_a_sequential_simulation(comm):
    """Of sync, in NumPy: the mean over all samples of all workers and microbatches."""

    def sizes(worker):
        return [4, 8, 4, 2, 0, 5, 16][: 7 - 2 * worker]

    params, ps = run(comm, {"strategy": "sync"}, sizes, False)
    w = np.zeros(N)
    for group in range(3):
        own = [batches_of(worker, sizes(worker), True)[group : group + 1] for worker in range(3)]
        batches = [batch for each in own for batch in each if len(batch)]
        total = sum(map(len, batches))
        if len(batches) == 1:
            w = w - 0.25 * gradient(w, batches[0])
        else:
            summed = len(batches[0]) * gradient(w, batches[0])
            for batch in batches[1:]:
                summed = summed + len(batch) * gradient(w, batch)
            w = w - 0.25 * (1.0 / total * summed)
    if not ps.is_server:
        np.testing.assert_array_equal(params, w)


RESUMED = [
    {"strategy": "sync", "rule": "momentum"},
    {"strategy": "sync", "rule": "momentum", "compress": "topk", "density": 0.5},
    {"strategy": "allreduce", "rule": "momentum"},
    {"strategy": "allreduce", "compress": "onebit"},
    {"strategy": "averaging", "period": 1},
]


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("options", RESUMED)
def test_a_checkpoint_that_is_asked_for_in_the_middle_waits_for_the_update(comm, options, tmp_path):
    """A run that resumes from any of them ends with the same bits, though workers end in the middle of an update."""
    options = sendable(comm, options)
    more = {"checkpoint_every": 2, "checkpoint_keep": 99, "checkpoint_dir": str(tmp_path / "run")}

    def sizes(worker):
        return [2, 4, 1, 3, 8, 4, 2, 2, 5, 1, 1, 7, 16, 4, 2, 1, 2][: 17 - 3 * worker]

    def train(directory, resume):
        params, asked = np.zeros(N), []
        with psgd.connect(
            comm, params, lr=0.25, accumulate=MICRO, **options, **more | {"checkpoint_dir": directory}, resume=resume
        ) as ps:
            for batch in batches_of(ps.worker, sizes(ps.worker), False)[ps.clock :]:
                if ps.clock == 4 and not resume:
                    ps.save()
                asked.append(ps.clock)
                ps.grads[:] = gradient(ps.params, batch)
                ps.step(len(batch))
        return params, ps, asked

    params, ps, _ = train(more["checkpoint_dir"], False)
    found = folders(tmp_path / "run") if comm.rank == 0 else []
    found = comm.bcast([str(path) for path in found])
    assert len(found) >= 2
    for number, path in enumerate(found):
        directory = str(tmp_path / f"again{number}")
        if comm.rank == 0:
            shutil.copytree(path, f"{directory}/{path.rpartition('/')[2]}")
        comm.Barrier()
        again, _, clocks = train(directory, True)
        assert not clocks or clocks[0] % MICRO == 0, "it begins with an update"
        if not ps.is_server:
            np.testing.assert_array_equal(again, params)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("strategy", ["sync", "allreduce", "hogwild"])
def test_wrong_numbers_are_refused(comm, strategy):
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(UsageError, match="accumulate: expected"):
            psgd.connect(comm, np.zeros(4), strategy=strategy, accumulate=wrong)


@pytest.mark.ranks(2)
def test_one_push_for_each_update(comm):
    with psgd.connect(comm, np.zeros(N), strategy="sync", accumulate=4) as ps:
        for _ in range(10):
            ps.step(2, 0.5)
        assert ps.clock == 10 and ps.version == 2
    if comm.rank == 0:
        assert ps.metrics.pushes == [3] and ps.metrics.samples == 20 and ps.metrics.loss == 0.5


@pytest.mark.parametrize("steps", [1, 3])
def test_the_sum_is_a_mean_over_all_samples(steps):
    grads, into = np.zeros(2), np.zeros(2)
    total = GradientSum(grads if steps == 1 else into, steps)
    assert total.empty
    full = []
    for value, samples in [(3.0, 2), (np.nan, 0), (7.0, 1)][:steps]:
        grads[:] = value
        full.append(total.add(grads, samples))
    assert full == [False] * (steps - 1) + [True] and not total.empty
    mean, samples = total.take()
    assert (mean.tolist(), samples) == (([3.0, 3.0], 2) if steps == 1 else ([13 / 3] * 2, 3))
    total.add(grads, 0)
    mean, samples = total.take()  # not full: a worker's data ended
    assert (mean.tolist(), samples, total.empty) == ([0.0, 0.0], 0, True)
