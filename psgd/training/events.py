"""What a run writes to its log and shows while it lasts."""

from collections.abc import Callable
from typing import Protocol

from psgd.metrics.event_log import EventLog
from psgd.metrics.run_metrics import Event, RunMetrics


class ProgressDisplay(Protocol):
    """What shows a run's progress."""

    def start(self, total_samples: int, epochs: int, done: int = 0) -> None:
        """The run begins."""

    def update(self, samples: int, epoch: int, loss: float, accuracy: float | None = None) -> None:
        """How far the run is; `accuracy` only where it is new."""


def listener(log: EventLog, display: ProgressDisplay | None) -> Callable[[RunMetrics, Event], None]:
    """What the metrics call at each event: it writes to the log and to the display."""

    def on_event(metrics: RunMetrics, event: Event) -> None:
        fresh = event == "eval"
        common = {"time": metrics.elapsed_s(), "samples": metrics.samples, "epoch": metrics.epoch}
        if fresh:
            log.write("eval", **common, accuracy=metrics.accuracy, loss=metrics.test_loss)
        else:
            log.write("progress", **common, loss=metrics.loss, lr=metrics.lr)
        write_waits(log, metrics)
        if display is not None:
            display.update(metrics.samples, metrics.epoch, metrics.loss, metrics.accuracy if fresh else None)

    return on_event


def write_waits(log: EventLog, metrics: RunMetrics) -> None:
    """Writes how long ranks have waited since the last time, where that is measured."""
    if metrics.waits is not None and (fields := metrics.waits.take()):
        log.write("waits", **fields)
