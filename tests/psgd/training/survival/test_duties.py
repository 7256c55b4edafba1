"""Who leads writes, shows and counts; who takes over goes on behind what was written."""

import json

from mpi4py import MPI

from psgd.checkpoint.requests import CheckpointRequest
from psgd.config import configure
from psgd.metrics.run_metrics import RunMetrics
from psgd.training.survival.duties import Duties


class Shown:
    def __init__(self):
        self.calls = []

    def show(self):
        self.calls.append("show")

    def start(self, *numbers):
        self.calls.append(numbers)


def test_another_goes_on_behind_what_was_written(tmp_path):
    config = configure(log=tmp_path / "log")
    shown, events = [Shown(), Shown()], []
    requests = [CheckpointRequest(), CheckpointRequest()]
    with (
        Duties(config, True, shown[0], requests[0]) as first,
        Duties(config, False, shown[1], requests[1]) as second,
    ):
        counts = [RunMetrics(1, lambda metrics, event, at=at: events.append((at, event)), 10) for at in range(2)]
        for duties, metrics in zip((first, second), counts, strict=True):
            duties.watch(metrics)
            duties.show(30, 3, 0)
            duties.log.write("start")
            metrics.progress(10, 1, 0.1)
        assert events == [(0, "epoch")] and counts[1].samples == 10
        assert counts[0].waits is not None and counts[1].waits is None
        second.also.append(lambda: events.append("also"))
        for _ in range(2):  # once
            second.take_over()
        second.log.write("more")
        counts[1].progress(20, 2, 0.1)
        assert first.first(MPI.COMM_SELF).Get_size() == 1
    assert [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()] == ["start", "more"]
    assert events == [(0, "epoch"), "also", (1, "epoch")] and counts[1].waits is not None
    assert shown[0].calls == [(30, 3, 0)] and shown[1].calls == ["show", (30, 3, 0)]
    assert requests[1].leads and second.leads


def test_without_files_and_display_there_is_only_who_leads():
    with Duties(configure(), False) as duties:
        duties.show(1, 1, 0)
        duties.take_over()
        assert duties.leads and not duties.log.on and not duties.board.on
