"""Sums of what workers did, and worker 0's metrics fed with them, where no push is ever seen alone."""

from collections import Counter
from typing import Any, NamedTuple

from psgd.metrics.run_metrics import RunMetrics


class Sums(NamedTuple):
    """Steps, samples, and the sum of the samples' losses."""

    steps: int
    samples: int
    loss: float


def add(one: Sums, other: Sums) -> Sums:
    """One and the other."""
    return Sums(one.steps + other.steps, one.samples + other.samples, one.loss + other.loss)


class Shown:
    """What worker 0's metrics have counted so far."""

    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics
        self._samples, self._loss = 0, 0.0

    def begin(self, sums: Sums) -> None:
        """So much was counted before this run resumed."""
        self._samples, self._loss = sums.samples, sums.loss

    def count(self, sums: Sums, lr: float) -> None:
        """Takes over what all workers have done since the start; pushes and staleness are set elsewhere."""
        metrics = self._metrics
        new, loss = sums.samples - self._samples, sums.loss - self._loss
        if not new:
            return
        self._samples, self._loss = sums.samples, sums.loss
        metrics.count(0, 0, new, loss)
        metrics.progress(sums.samples, sums.steps, lr)

    def complete(self, reported: list[dict[str, Any]]) -> None:
        """Sets what each worker alone knows.

        Args:
            reported: for each worker `steps`, `staleness` (pairs of staleness and pushes), `waited` and `computed`
                in seconds, `reports` (pairs of accuracy and loss that the metrics do not know yet).
        """
        metrics = self._metrics
        metrics.pushes[:] = [each["steps"] for each in reported]
        metrics.staleness = Counter()
        for worker, each in enumerate(reported):
            metrics.staleness.update(dict(each["staleness"]))
            metrics.ended(worker, each["waited"], each["computed"])
            for accuracy, loss in each["reports"]:
                metrics.report(accuracy, loss)
