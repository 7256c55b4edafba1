"""What a run writes to its log and shows while it lasts."""

from collections.abc import Callable
from typing import Protocol

from psgd.checkpoint.requests import CheckpointRequest
from psgd.metrics.event_log import EventLog
from psgd.metrics.perplexity import perplexity
from psgd.metrics.run_metrics import Event, RunMetrics
from psgd.metrics.snapshot import Snapshots

Listener = Callable[[RunMetrics, Event], None]


class ProgressDisplay(Protocol):
    """What shows a run's progress."""

    def start(self, total_samples: int, epochs: int, done: int = 0) -> None:
        """The run begins."""

    def update(self, samples: int, epoch: int, loss: float, accuracy: float | None = None) -> None:
        """How far the run is; `accuracy` only where it is new."""


def listener(
    log: EventLog, display: ProgressDisplay | None, *others: Listener, with_perplexity: bool = False
) -> Listener:
    """What the metrics call at each event: it writes to the log and to the display, and calls the others."""
    snapshots = Snapshots()

    def on_event(metrics: RunMetrics, event: Event) -> None:
        fresh = event == "eval"
        common = {"time": metrics.elapsed_s(), "samples": metrics.samples, "epoch": metrics.epoch}
        if fresh:
            more = {"perplexity": perplexity(metrics.test_loss or 0.0)} if with_perplexity else {}
            log.write("eval", **common, accuracy=metrics.accuracy, loss=metrics.test_loss, **more)
        else:
            log.write("progress", **common, loss=metrics.loss, lr=metrics.lr)
        write_waits(log, metrics)
        if log.on and snapshots.due(metrics):
            log.write("workers", **snapshots.take(metrics))
        if display is not None:
            display.update(metrics.samples, metrics.epoch, metrics.loss, metrics.accuracy if fresh else None)
        for other in others:
            other(metrics, event)

    return on_event


def saves_best(request: CheckpointRequest) -> Listener:
    """Requests a checkpoint at each evaluation that is better than all before."""

    def on_event(metrics: RunMetrics, event: Event) -> None:
        if event == "eval" and metrics.since_best == 0:
            request.ask()

    return on_event


def write_waits(log: EventLog, metrics: RunMetrics) -> None:
    """Writes how long ranks have waited since the last time, where that is measured."""
    if metrics.waits is not None and (fields := metrics.waits.take()):
        log.write("waits", **fields)
