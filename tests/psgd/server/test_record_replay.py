"""Every strategy with servers, on real ranks: the order that it wrote, applied by a sequential simulation, gives the
same bits, and so does a second run that follows it. Each strategy's own rule is checked on the order."""

import json
import os
import time

import numpy as np
import pytest
from harness.simulation import by_log, curved

import psgd
from psgd import strategies
from psgd.kernels.errors import ContractError, PeerLostError, UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import staleness
from psgd.server.log import CheckpointPoint
from psgd.server.record_replay import FORMAT, Recorder, load

N = 1031
LR = 0.05
CASES = [
    ("sync", {}),
    ("async", {}),
    ("softsync", {"softsync": 1}),
    ("softsync", {"softsync": 2}),
    ("softsync", {"softsync": 3}),
    ("ssp", {"staleness": 0}),
    ("ssp", {"staleness": 1}),
    ("ssp", {"staleness": 4}),
]


def samples_of(worker, push):
    """Different for all, and sometimes none."""
    return 0 if (worker + push) % 7 == 3 else 1 + (3 * worker + push) % 5


def steps_of(worker):
    return 20 + 3 * worker


def run(comm, strategy, servers, naps=True, **options):
    """One run; returns this worker's final weights (None on a server) and the metrics."""
    metrics = RunMetrics(comm.size - servers)
    start = np.cos(np.arange(N)) if comm.rank == servers else np.zeros(N)
    rng = np.random.default_rng(time.time_ns() + comm.rank)
    with psgd.connect(comm, start, strategy=strategy, servers=servers, lr=LR, metrics=metrics, **options) as ps:
        for push in range(1, steps_of(ps.worker) + 1):
            ps.grads[:] = curved(ps.params, ps.worker, push)
            if naps:
                time.sleep(float(rng.exponential(2e-4)))
            ps.step(samples_of(ps.worker, push), loss=1.0)
    return (start if comm.rank >= servers else None), metrics


def check_rule(strategy, options, entries, workers):
    """What the strategy's definition says of the order of pushes and releases."""
    clocks, live = [0] * workers, [steps_of(worker) for worker in range(workers)]
    contributions = 0
    for entry in entries:
        for worker, push, weight in entry.group:
            clocks[worker] += 1
            assert push == clocks[worker]
            contributions += samples_of(worker, push) > 0
            assert weight == (1 / workers if strategy == "ssp" and options["staleness"] else 1)
        if strategy == "sync" or options == {"staleness": 0}:
            assert [m.worker for m in entry.group] == sorted(entry.release)
        if strategy == "async" or options == {"softsync": 1}:
            assert len(entry.group) <= 1
        if strategy == "softsync" and not entry.stays_open and entry.group:
            assert contributions % options["softsync"] == 0
        if strategy == "ssp":
            slowest = min((clocks[w] for w in range(workers) if clocks[w] < live[w]), default=10**9)
            for worker in entry.release:
                assert clocks[worker] - slowest <= options["staleness"]
    assert clocks == live


@pytest.mark.ranks(3, 4, 5)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_recorded_run_equals_a_simulation_and_its_replay(comm, tmp_path, servers, case):
    strategy, options = CASES[case]
    workers = comm.size - servers
    if options.get("softsync", 1) > workers:
        pytest.skip("more contributions than workers")
    scaled = "inverse" if case % 2 else "none"
    options = {**options, "staleness_lr": scaled}
    final, metrics = run(comm, strategy, servers, record=tmp_path / "order", **options)
    again, _ = run(comm, strategy, servers, naps=False, replay=tmp_path / "order", record=tmp_path / "again", **options)
    if final is not None:
        np.testing.assert_array_equal(final, again)
    comm.Barrier()
    lines = (tmp_path / "order").read_text().splitlines()
    entries = load(tmp_path / "order", {})
    check_rule(strategy, {k: v for k, v in options.items() if k != "staleness_lr"}, entries, workers)
    w, taus = by_log(np.cos(np.arange(N)), entries, workers, LR, samples_of, curved, staleness.create(scaled))
    if final is not None:
        np.testing.assert_array_equal(final, w)
    if comm.rank == 0:
        assert (tmp_path / "again").read_text().splitlines() == lines or strategy in ("ssp", "softsync")
        assert dict(metrics.staleness) == {tau: taus.count(tau) for tau in set(taus)}


@pytest.mark.ranks(3)
def test_softsync_of_one_is_async_bit_for_bit(comm, tmp_path):
    run(comm, "async", 1, record=tmp_path / "order")
    comm.Barrier()
    lines = (tmp_path / "order").read_text()
    if comm.rank == 0:
        (tmp_path / "soft").write_text(lines.replace('"strategy": "async"', '"strategy": "softsync"'))
    comm.Barrier()
    one, _ = run(comm, "async", 1, naps=False, replay=tmp_path / "order")
    two, _ = run(comm, "softsync", 1, naps=False, replay=tmp_path / "soft")
    if one is not None:
        np.testing.assert_array_equal(one, two)


@pytest.mark.ranks(3, 4)
def test_a_bound_of_zero_is_sync_bit_for_bit(comm):
    one, _ = run(comm, "sync", 1)
    two, _ = run(comm, "ssp", 1, staleness=0)
    if one is not None:
        np.testing.assert_array_equal(one, two)


@pytest.mark.ranks(3)
def test_no_bound_is_async_at_a_rate_over_n(comm, tmp_path):
    """With two workers 1/N is a power of two, so even the bits are those of half the rate."""
    run(comm, "ssp", 1, staleness=1000, record=tmp_path / "order")
    comm.Barrier()
    entries = load(tmp_path / "order", {})
    weighed = [a._replace(group=tuple(m._replace(weight=1.0) for m in a.group)) for a in entries]
    w, _ = by_log(np.cos(np.arange(N)), weighed, 2, LR, samples_of, curved, lambda t: 0.5)
    final, _ = run(comm, "ssp", 1, naps=False, staleness=1000, replay=tmp_path / "order")
    if final is not None:
        np.testing.assert_array_equal(final, w)


@pytest.mark.ranks(3)
def test_a_worker_that_ends_early_or_sleeps_stops_nobody(comm):
    """Worker 0 ends after one step; with a bound of 1 the other goes on to its end."""
    with psgd.connect(comm, np.zeros(5), strategy="ssp", staleness=1, servers=1, lr=LR) as ps:
        for _ in range(1 if ps.worker == 0 else 50):
            ps.grads[:] = 1
            ps.step()
        steps = ps.version
    if comm.rank == 2:
        assert steps == 51


@pytest.mark.ranks(3)
@pytest.mark.parametrize("change", ["short", "long", "other"])
def test_an_order_that_does_not_fit_is_an_error_and_no_hang(comm, tmp_path, change):
    run(comm, "async", 1, record=tmp_path / "order")
    comm.Barrier()
    lines = (tmp_path / "order").read_text().splitlines()
    if comm.rank == 0:
        changed = {"short": lines[:-1], "long": [*lines, '{"apply": [[0, 21, 1.0]], "release": [0]}']}
        changed["other"] = [lines[0].replace('"workers": 2', '"workers": 3'), *lines[1:]]
        (tmp_path / "order").write_text("\n".join(changed[change]))
    comm.Barrier()
    expected = {
        "short": "is not in the file",
        "long": "has ended",
        "other": "workers was 3 there and is 2 here",
    }
    with pytest.raises((ContractError, PeerLostError, UsageError)) as caught:
        run(comm, "async", 1, naps=False, replay=tmp_path / "order")
    if comm.rank == 0 or change == "other":
        assert expected[change] in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": "x"}', f'{{"format": "{FORMAT}", "run": {{}}}}\n{{"apply": [[0, -1, 1]]}}']
)
def test_what_is_no_order_is_refused(tmp_path, text):
    (tmp_path / "order").write_text(text)
    with pytest.raises(UsageError, match=r"replay: .*order, line [12]: not a valid record"):
        load(tmp_path / "order", {})


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ([([[0, 2, 1]], [0])], "push 2 of worker 0 is out of order"),
        ([([[0, 1, 1]], []), ([[0, 2, 1]], [0])], "push 2 of worker 0 is out of order"),
        ([([[0, 1, 1]], [0, 0])], "worker 0 is released without a push"),
        ([([], [1])], "worker 1 is released without a push"),
        ([([[2, 1, 1]], [2])], "a worker that is not one of the 2"),
        ([([[0, 1, float("nan")]], [0])], "weight nan"),
        ([([[0, 1, -1]], [0])], "weight -1"),
        ([([[0, 1, 1]], [0]), ([[1, 1, 1]], [])], "ends before worker 1 is released"),
    ],
)
def test_what_would_never_end_is_refused(tmp_path, actions, said):
    lines = [{"format": FORMAT, "run": {"workers": 2}}, *({"apply": a, "release": r} for a, r in actions)]
    (tmp_path / "order").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=said):
        load(tmp_path / "order", {"workers": 2})


def test_wrong_bounds():
    for name, options in [
        ("softsync", {"softsync": 0}),
        ("softsync", {"softsync": 4}),
        ("softsync", {"softsync": 1.5}),
    ]:
        with pytest.raises(UsageError, match="softsync: expected"):
            strategies.create(name, 3, **options)
    with pytest.raises(UsageError, match="staleness: expected"):
        strategies.create("ssp", 3, staleness=-1)


def test_a_record_of_other_workers_is_not_continued(tmp_path):
    path = tmp_path / "order"
    Recorder(strategies.create("async", 2), path, {"workers": 2}).close()
    text, point = path.read_text(), CheckpointPoint(0, 0, [0, 0], 0)
    recorder = Recorder(strategies.create("async", 2), path, {"workers": 2}, resumed=True)
    recorder.restore(point)
    recorder.close()
    recorder = Recorder(strategies.create("async", 3), path, {"workers": 3}, resumed=True)
    with pytest.raises(UsageError, match="is from another run, or has other workers"):
        recorder.restore(point)
    recorder.close()
    assert path.read_text() == text


@pytest.mark.timeout(20)
def test_a_pipe_is_written_and_cannot_be_continued(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="cannot be written: it is a pipe that nobody reads"):
        Recorder(strategies.create("async", 2), path, {})
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    Recorder(strategies.create("async", 2), path, {}).close()
    assert json.loads(os.read(reader, 1000))["format"]
    with pytest.raises(UsageError, match="cannot be written: expected the file of the run that is resumed"):
        Recorder(strategies.create("async", 2), path, {}, resumed=True)
    os.close(reader)
