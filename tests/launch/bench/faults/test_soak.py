"""A run that is killed at is checked: what must hold is told apart from what must not."""

import json
import random

import pytest
from harness import mpi

from psgd.launch.bench.faults import soak


def _pushes(applied, newest):
    return {"acknowledged": [9, None], "servers": [{"server": 0, "applied": applied, "newest": newest}]}


def result(**changes):
    values = {
        "pushes": _pushes([9, 4], [9, 4]),
        "samples": 800,
        "train_samples": 100,
        "lost_ranks": [2],
        "test_accuracy": 0.95,
        "seconds": 1.0,
    }
    return json.dumps(values | changes) + "\n"


def test_what_holds_is_not_wrong():
    outcome = soak.Outcome("async", killed=[2])
    soak.check(outcome, 4, "said before\n" + result(), "", 8)
    assert outcome.wrong == [] and outcome.seconds == 1.0 and (outcome.acknowledged, outcome.lost) == (9, 0)
    soak.check(outcome := soak.Outcome("async"), 0, result(lost_ranks=[]), "", 8)
    assert outcome.wrong == []


@pytest.mark.parametrize(
    ("code", "changes", "said"),
    [
        (1, {}, "exit code 1"),
        (0, {}, "exit code 0"),
        (4, {"samples": 799}, "799 samples applied, expected 800"),
        (4, {"lost_ranks": []}, "lost ranks"),
        (4, {"test_accuracy": 0.5}, "accuracy 0.5"),
        (4, {"pushes": _pushes([8, 4], [8, 4])}, "1 of 9 acknowledged pushes are lost"),
        (4, {"pushes": _pushes([10, 4], [9, 4])}, "server 0 has applied 10 pushes of worker 0"),
    ],
)
def test_what_does_not_is(code, changes, said):
    outcome = soak.Outcome("async", killed=[2])
    soak.check(outcome, code, result(**changes), "", 8)
    assert len(outcome.wrong) == 1 and said in outcome.wrong[0]


def test_events_of_a_log_that_is_being_written(tmp_path):
    log = tmp_path / "log"
    assert soak.events(log) == []
    log.write_text('{"event": "start"}\n{"event": "lost", "rank": 1}\n{"eve')
    assert soak.events(log) == [{"event": "start"}, {"event": "lost", "rank": 1}]


@pytest.mark.job
@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
@pytest.mark.parametrize(("strategy", "kind"), [("async", "workers"), ("allreduce", "spares")])
def test_a_run(strategy, kind, monkeypatch):
    for name, value in mpi.environment("soak").items():
        monkeypatch.setenv(name, value)
    outcome = soak.run(strategy, 3, random.Random(1), kind)
    assert outcome.wrong == [] and outcome.killed and sorted(outcome.detected_s) == sorted(outcome.killed)
    if kind == "workers":
        assert outcome.lost == 0 and outcome.acknowledged > 0
        assert all(outcome.paused_s[rank] >= outcome.detected_s[rank] for rank in outcome.paused_s)
