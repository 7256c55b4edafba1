import json
from contextlib import closing

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
