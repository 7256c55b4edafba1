"""A gradient that is not finite: one warning that names rank and step, left out, or the same error on all ranks."""

from types import SimpleNamespace

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import DivergedError
from psgd.strategies.catalog import STRATEGIES
from psgd.worker import gradient_watch
from psgd.worker.gradient_watch import GradientWatch

BAD, STEP = 1, 4  # worker, and its step from 1
SHORT = {"decentralized": {"compress": "none"}}


@pytest.fixture
def lines(monkeypatch):
    said = []
    monkeypatch.setattr(gradient_watch, "say", said.append)
    return said


def test_it_warns_once_and_goes_on(lines):
    watch = GradientWatch("warn", 2, 1, leaves_out=False)
    assert not watch.acts
    assert watch.found(np.zeros(3), 5, 8) == 8 and watch.found(np.zeros(3), 6, 8) == 8 and watch.skipped == 0
    assert len(lines) == 1 and lines[0].startswith(
        "warning: rank 2 (worker 1), step 5: the gradient is not finite (NaN or infinite); training continues with it"
    )


def test_it_leaves_out(lines):
    watch = GradientWatch("skip", 2, 1, leaves_out=False)
    assert watch.acts
    assert [watch.found(np.zeros(3), step, 8) for step in (5, 6)] == [0, 0] and watch.skipped == 2
    assert len(lines) == 1 and "rank 2 (worker 1), step 5" in lines[0] and "it is omitted" in lines[0]


def test_it_stops(lines):
    with pytest.raises(DivergedError, match=r"^rank 2 \(worker 1\), step 5: the gradient is not finite"):
        GradientWatch("stop", 2, 1, leaves_out=False).found(np.zeros(3), 5, 8)
    assert not lines


@pytest.mark.parametrize(
    ("worker", "params", "said"),
    [
        (0, [np.nan], False),
        (1, [np.nan], False),
        (0, [np.inf], True),
        (1, [np.inf], False),
        (0, [np.nan, -np.inf], True),  # steps of two workers, too long and opposite: no gradient was wrong before
        (1, [np.nan, -np.inf], False),
    ],
)
def test_what_follows_from_others_is_not_said_again(lines, worker, params, said):
    GradientWatch("warn", worker + 1, worker, leaves_out=False).found(np.array([1.0, *params]), 7, 1)
    assert len(lines) == said and all("parameters have become infinite" in line for line in lines)


def test_a_codec_leaves_out_by_itself(lines):
    assert GradientWatch("warn", 0, 0, leaves_out=True).found(np.zeros(3), 2, 4) == 4
    assert "it is omitted" in lines[0]


def worker_with(grads, params=None):
    return SimpleNamespace(grads=grads, params=np.zeros_like(grads) if params is None else params)


def with_nan(size, at):
    values = np.zeros(size, np.float32)
    values[at] = np.nan
    return values


@pytest.mark.parametrize(
    ("on_nan", "leaves_out", "size", "exact"),
    [
        ("warn", False, 10, True),
        ("warn", False, 1 << 14, True),
        ("warn", False, (1 << 14) + 1, False),
        ("warn", True, 1 << 19, True),
        ("skip", False, 1 << 19, True),
        ("stop", False, 1 << 19, True),
    ],
)
def test_where_only_a_warning_depends_on_it_it_looks_at_parts(on_nan, leaves_out, size, exact):
    watch = GradientWatch(on_nan, 0, 0, leaves_out=leaves_out)
    watch.begin(np.zeros(size, np.float32))
    assert watch.exact == exact
    assert all(watch.looks_well(worker_with(np.zeros(size, np.float32)), step, False) for step in range(40))
    for at in (0, size // 2, size - 1):
        seen = [watch.looks_well(worker_with(with_nan(size, at)), step, False) for step in range(gradient_watch.PARTS)]
        assert sum(seen) == (0 if exact else gradient_watch.PARTS - 1)
    wrong = worker_with(np.full(size, np.inf, np.float32))
    assert not any(watch.looks_well(wrong, step, False) for step in range(size // 1024))


def test_parameters_are_looked_at_too_where_a_gradient_is_in_parts():
    watch, size = GradientWatch("warn", 0, 0, leaves_out=False), 1 << 16
    watch.begin(np.zeros(size, np.float32))
    worker = worker_with(np.zeros(size, np.float32), with_nan(size, 12_345))
    for overlapped in (False, True):
        assert [watch.looks_well(worker, step, overlapped) for step in range(64)].count(False) == 2


@pytest.mark.parametrize("size", [2000, 1 << 16])
def test_what_is_sent_early_is_looked_at_before(size):
    watch, sent, grads = GradientWatch("warn", 1, 1, leaves_out=False), [], np.zeros(size, np.float32)
    watch.begin(grads)
    worker = worker_with(grads)
    for wrong in (False, True):
        ready = watch.overlapping(sent.append, grads, 3)
        ready(range(size // 2, size))
        grads[: size // 2] = np.nan if wrong else 0
        ready(range(size // 2))
        grads[:] = 0  # as if it were a sum by now
        assert watch.looks_well(worker, 3, True) is not wrong
    assert sent == 2 * [range(size // 2, size), range(size // 2)]
    watch.found(worker.params, 4, 1)
    assert watch.looks_well(worker, 4, True), "the next gradient is another one"


def test_parameters_that_a_gradient_has_spoiled_unseen(lines):
    for worker in (1, 0):
        watch = GradientWatch("warn", worker, worker, leaves_out=False)
        watch.begin(np.zeros(1 << 16, np.float32))
        for step in (7, 8):
            assert watch.found(np.array([1.0, np.nan]), step, 2) == 2
    assert len(lines) == 1 and lines[0].startswith(
        "warning: rank 0 (worker 0), step 7: the parameters are not finite (NaN or infinite) any more: "
    )


def train(comm, name, value, **options):
    """Worker BAD has a bad gradient once; returns the connection, the parameters and the lines that were said here."""
    said, real = [], gradient_watch.say
    gradient_watch.say = said.append
    params = np.ones(40)
    try:
        with psgd.connect(comm, params, strategy=name, lr=0.0625, **SHORT.get(name, {}), **options) as ps:
            for step in range(1, 9):
                ps.grads[:] = 1.0
                if ps.worker == BAD and step == STEP:
                    ps.grads[17] = value
                ps.step(2, 0.5)
    finally:
        gradient_watch.say = real
    return ps, params, said


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_warning_names_rank_and_step(comm, name, value):
    ps, params, said = train(comm, name, float(value))
    rank = BAD + ps.servers
    everyone = comm.allgather(said)
    assert [len(lines) for lines in everyone] == [int(k == rank) for k in range(comm.size)], everyone
    assert f"rank {rank} (worker {BAD}), step {STEP}: the gradient is not finite" in everyone[rank][0]
    finite = bool(np.isfinite(params).all())
    assert ("training continues with it" in everyone[rank][0]) is not finite
    assert ("it is omitted" in everyone[rank][0]) is finite


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("whole", [True, False])
def test_a_large_gradient_is_not_passed_over(comm, name, whole):
    """One that is bad as a whole is named at once; a single element is seen in the parameters, at the latest."""
    said, real = [], gradient_watch.say
    gradient_watch.say = said.append
    params = np.ones(300_000, np.float32)
    try:
        with psgd.connect(comm, params, strategy=name, lr=0.0625, **SHORT.get(name, {})) as ps:
            for step in range(1, 20_000):
                if step > 49 and (whole or said or ps.worker or name == "decentralized"):
                    break  # worker 0 goes on until it has seen what another may do later
                ready = ps.overlap(1) if step % 2 else None
                ps.grads[:] = 1.0
                if ps.worker == BAD and step in (STEP, STEP + 1):
                    ps.grads[slice(None) if whole else 123_456] = np.nan
                if ready is not None:
                    ready(range(params.size))
                ps.step(1)
    finally:
        gradient_watch.say = real
    rank, everyone = BAD + ps.servers, comm.allgather(said)
    first = f"warning: rank {rank} (worker {BAD}), step {STEP}: the gradient is not finite"
    exact = whole or name == "decentralized"
    assert sum(line.startswith(first) for line in everyone[rank]) == exact, everyone
    if name == "decentralized":  # it omits such a gradient
        assert len(everyone[rank]) == 1 and "it is omitted" in everyone[rank][0]
        return
    late = "the parameters are not finite (NaN or infinite) any more"
    assert whole or any(late in line for line in everyone[ps.servers]), everyone


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_skipped_gradient_leaves_the_others(comm, name):
    ps, params, said = train(comm, name, np.nan, on_nan="skip")
    assert np.isfinite(params).all() and ps.skipped == (comm.rank == BAD + ps.servers) == len(said)
    if name == "sync" and not ps.is_server:  # the mean of the others is the same
        np.testing.assert_array_equal(params, 1 - 8 * 0.0625)
    if name == "async" and not ps.is_server:
        np.testing.assert_allclose(params, 1 - 0.0625 * (8 * ps.workers - 1), atol=1e-12)
    comm.Barrier()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_stop_is_the_same_error_on_all_ranks(comm, name):
    with pytest.raises(DivergedError) as caught:
        train(comm, name, np.nan, on_nan="stop")
    texts = comm.allgather(str(caught.value))
    rank = BAD + (1 if STRATEGIES[name].servers else 0)
    assert len(set(texts)) == 1 and texts[0].startswith(f"rank {rank} (worker {BAD}), step {STEP}: "), texts


@pytest.mark.ranks(1)
def test_one_rank_alone(comm):
    params, said = np.ones(3), []
    for on_nan, wrong in (("warn", True), ("skip", False)):
        with psgd.connect(comm, params, on_nan=on_nan) as ps:
            ps.grads[:] = np.nan
            ps.step(0)  # not read
            ps.grads[:] = 0.0
            ps.step(1)
            assert ps.skipped == 0 and not said
            params[:] = 1.0
            ps.grads[1] = -np.inf
            ps.step(1)
        assert ps.skipped == (not wrong) and np.isfinite(params).all() != wrong


@pytest.mark.ranks(2)
def test_a_loss_that_is_no_number_tells_as_much(comm):
    """Of a gradient that is too long to be looked at in every step."""
    said, real = [], gradient_watch.say
    gradient_watch.say = said.append
    try:
        with psgd.connect(comm, np.zeros(300_000, np.float32), strategy="allreduce") as ps:
            for step in range(1, 6):
                ps.step(1, float("nan") if step == 3 and ps.worker == 1 else 0.5)
                ps.step(1)  # none is given
    finally:
        gradient_watch.say = real
    assert len(said) == (comm.rank == 1) and all("step 5: " in line for line in said)


@pytest.mark.job
def test_steps_that_are_too_long_are_said_where_all_write_to_one_vector(psgd_command):
    done = psgd_command(*RUN, "--strategy", "hogwild", "--lr", "1e20")
    assert done.returncode == 3 and "not finite (NaN or infinite)" in done.stderr, done.stderr


RUN = ("train", "--epochs", "1", "--eval-every", "0", "--hidden", "8", "--json")


@pytest.mark.job
@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--inject", "nan:1@5"), 3, "rank 2 (worker 1), step 5: the gradient is not finite"),
        (("--inject", "nan:1@5", "--on-nan", "stop"), 3, "psgd: error: rank 2 (worker 1), step 5: the gradient"),
        (("--inject", "nan:1@5", "--on-nan", "skip"), 0, "rank 2 (worker 1), step 5: the gradient is not finite"),
        (("--workers", "1", "--servers", "0", "--inject", "nan:0@5"), 3, "rank 0 (worker 0), step 5"),
    ],
)
@pytest.mark.one_mpi
def test_the_command_has_a_code_of_its_own(psgd_command, more, code, said):
    done = psgd_command(*RUN, *more)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("not finite (NaN") == 1 and said in done.stderr and "Traceback" not in done.stderr
    if "stop" not in more:
        assert f'"diverged": {"true" if code else "false"}' in done.stdout
        assert '"workers_dropped": [0, 1]' in done.stdout or "skip" not in more
