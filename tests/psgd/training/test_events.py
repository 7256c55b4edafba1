import json
from contextlib import closing

from psgd.checkpoint.requests import CheckpointRequest
from psgd.metrics.event_log import EventLog
from psgd.metrics.run_metrics import RunMetrics
from psgd.training import events


class Display:
    def __init__(self):
        self.shown = []

    def update(self, samples, epoch, loss, accuracy=None):
        self.shown.append((samples, epoch, loss, accuracy))


def test_events_are_written_and_shown(tmp_path):
    display = Display()
    with closing(EventLog(tmp_path / "log")) as log:
        metrics = RunMetrics(1, events.listener(log, display), samples_per_epoch=8)
        metrics.applied(0, 8, 0.5, 0)
        metrics.progress(8, 1, 0.25)
        metrics.report(0.75, 1.5)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["event"] for line in lines} == {"progress", "eval"}
    first, last = lines[0], lines[-1]
    assert {k: first[k] for k in ("samples", "epoch", "loss", "lr")} == {
        "samples": 8,
        "epoch": 1,
        "loss": 0.5,
        "lr": 0.25,
    }
    assert {k: last[k] for k in ("samples", "epoch", "accuracy", "loss")} == {
        "samples": 8,
        "epoch": 1,
        "accuracy": 0.75,
        "loss": 1.5,
    }
    assert display.shown[0] == (8, 1, 0.5, None) and display.shown[-1] == (8, 1, 0.5, 0.75)


def test_without_a_display_or_waits_only_the_log_is_written(tmp_path):
    with closing(EventLog(tmp_path / "log")) as log:
        metrics = RunMetrics(1, events.listener(log, None))
        events.write_waits(log, metrics)
        assert (tmp_path / "log").read_text() == ""
        metrics.report(0.5, 1.0)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["accuracy"] == 0.5


def test_each_evaluation_that_is_better_than_all_before_requests_a_checkpoint():
    request = CheckpointRequest()
    metrics = RunMetrics(1, events.saves_best(request), samples_per_epoch=1)
    asked = []
    for accuracy in (0.5, 0.4, 0.5, 0.6):
        metrics.report(accuracy, 1.0)
        asked.append(request.level)
        request.answered(leaving=False)
        metrics.progress(metrics.samples + 1, 1, 0.1)
        assert request.level == 0
    assert asked == [1, 0, 0, 1]


def test_the_log_has_what_each_worker_does(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(RunMetrics, "elapsed_s", lambda metrics: now[0])
    with closing(EventLog(tmp_path / "log")) as log:
        metrics = RunMetrics(2, events.listener(log, None))
        for seconds in (0.0, 2.0):
            now[0] = seconds
            metrics.applied(1, 8, 0.5, 3)
            metrics._next_event = 0.0
            metrics.progress(metrics.samples + 8, 1, 0.25)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (line,) = [line for line in lines if line["event"] == "workers"]
    assert line["pushes"] == [0, 2] and line["waited_s"] == [0.0, 0.0] and line["largest_staleness"] == 3
