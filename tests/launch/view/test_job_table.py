import time

import pytest

from psgd.launch.view.job_log import JobLog
from psgd.launch.view.job_table import table

START = {"workers": 3, "servers": 1, "dataset": "digits", "model": "mlp", "strategy": "ssp", "epochs": 10}
START["samples"] = 1000


@pytest.fixture
def job(tmp_path):
    job = JobLog(tmp_path / "run.jsonl")
    job.start = dict(START)
    return job


def running(job):
    job.progress = {"time": 20.0, "samples": 2500, "loss": 0.5, "lr": 0.1}
    job.tested, job.best = {"time": 19.0, "accuracy": 0.8}, 0.9
    job.workers = {
        "time": 20.0, "samples": 2500, "samples_per_second": 1234.5, "staleness": 1.25, "largest_staleness": 7,
        "pushes": [100, 60, 97], "waited_s": [5.0, 0.0, 20.0],
    }  # fmt: skip


def test_a_running_job(job):
    running(job)
    lines = table(job, time.time())
    assert lines[:6] == [
        "digits, mlp, ssp: 1 server, 3 workers; running, 20.0 s",
        "progress     [#####               ] 25 %, epoch 2/10, 1:00 left",
        "samples/s    1,234, 2,500 in all",
        "loss         0.5000, lr 0.1",
        "accuracy     0.8000, best 0.9000",
        "staleness    mean 1.25, largest 7",
    ]
    assert [line.split() for line in lines[-3:]] == [
        ["0", "100", "0", "5.0", "25", "%", "#####"],
        ["1", "60", "40", "3.0", "0", "%"],
        ["2", "97", "3", "4.8", "100", "%", "#" * 20],
    ]


def test_one_that_has_said_nothing_for_a_while(job):
    running(job)
    assert "no news for 1:30, 20.0 s" in table(job, time.time() - 90)[0]


def test_one_that_has_ended_shows_its_result(job):
    running(job)
    job.end = {
        "seconds": 50.0, "samples": 10000, "samples_per_second": 200.0, "train_loss": 0.25, "diverged": False,
        "workers_applied": [300, 300, 301], "waited_seconds": [10.0, 0.0, 30.0], "computed_seconds": [40.0, 50.0, 10.0],
        "staleness": {"mean": 0.5, "max": 3},
    }  # fmt: skip
    lines = table(job, None)
    assert lines[0].endswith("; ended, 50.0 s")
    assert "100 %, epoch 10/10" in lines[1] and "left" not in lines[1]
    assert lines[2] == "samples/s    200, 10,000 in all" and lines[3].startswith("loss         0.2500")
    assert lines[5] == "staleness    mean 0.50, largest 3"
    assert [line.split()[4] for line in lines[-3:]] == ["20", "0", "75"]


def test_a_diverged_run_has_no_finite_loss(job):
    job.end = {"seconds": 1.0, "train_loss": None, "diverged": True}
    lines = table(job, None)
    assert "ended, diverged" in lines[0] and any(line.startswith("loss         not finite") for line in lines)


def test_before_the_first_second_and_without_a_line(job, tmp_path):
    job.progress = {"time": 0.5, "samples": 10, "loss": 1.0}
    assert table(job, None)[-1].startswith("no line of the workers yet")
    empty = JobLog(tmp_path / "x")
    empty.skipped = 2
    (line,) = table(empty, None)
    assert line.endswith("no line of psgd train --log in it yet (2 lines skipped: cut off, or of something else)")


def test_values_of_other_kinds_do_no_harm(job):
    job.progress = {"time": "x", "samples": None, "loss": "nan", "lr": []}
    job.workers = {"pushes": [1, None, "x"], "waited_s": None, "time": float("nan"), "staleness": None}
    job.start |= {"epochs": "many", "workers": None}
    assert len(table(job, None)) >= 5
