"""Counting local steps that are told at exchanges only."""

from psgd.metrics import RunMetrics
from psgd.wire import FORMAT, Header, Kind


class Tally:
    """What a worker did since its last exchange.

    Attributes:
        pushes: steps with samples.
        samples: behind their gradients.
        loss: sum over the samples.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """It has been told."""
        self.pushes = self.samples = 0
        self.loss = 0.0

    def note(self, samples: int, loss: float) -> None:
        """Adds a step; one of 0 samples is none."""
        if samples:
            self.pushes += 1
            self.samples += samples
            self.loss += samples * loss


def count(
    metrics: RunMetrics, worker: int, pushes: int, samples: int, loss: float, version: int = 0, staleness: int = 0
) -> None:
    """Counts a worker's steps, on worker 0.

    Args:
        metrics: counters.
        worker: whose.
        pushes: how many.
        samples: behind all of them.
        loss: sum over the samples.
        version: exchanges before the one that told of them.
        staleness: others' exchanges since that worker's one before.
    """
    if not pushes:
        return
    fields = (pushes, 0, version - staleness, samples, 0, 0, loss / samples, 0.0)
    metrics.applied(Header(FORMAT, 0, Kind.PUSH, worker, 0, 0, *fields), version)
    metrics.pushes[worker] += pushes - 1
    metrics.staleness[staleness] += pushes - 1


def ended(metrics: RunMetrics, worker: int, waited_s: float, computed_s: float) -> None:
    """Counts a worker that has no more steps, on worker 0."""
    metrics.done(Header(FORMAT, 0, Kind.DONE, worker, 0, 0, 0, 0, 0, 0, 0, 0, waited_s, computed_s))
