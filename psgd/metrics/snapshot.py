"""A run's counters now and then: how fast it is, how stale pushes are, how long each worker has waited."""

from typing import Any

from psgd.metrics.run_metrics import RunMetrics

LEAST_S = 1.0
"""Snapshots are at least so far apart."""
_MANY = 100


class Snapshots:
    """Takes them; those of many workers are rarer."""

    def __init__(self) -> None:
        self._next = 0.0
        self._began = False
        self._samples, self._seconds = 0, 0.0
        self._pushes, self._staleness = 0, 0.0

    def due(self, metrics: RunMetrics) -> bool:
        """Whether it is time for the next. The first call only looks where the run begins, as one that resumes does."""
        if not self._began:
            self._began = True
            self.take(metrics)
        return metrics.elapsed_s() >= self._next

    def take(self, metrics: RunMetrics) -> dict[str, Any]:
        """What the run has done, as fields of a line of its log.

        Returns:
            Since the start: `time` in seconds, `samples`, `steps`, `largest_staleness`, and by worker `pushes` and
            `waited_s`. Since the snapshot before: `samples_per_second`, and `staleness`, the mean of the new pushes
            (None without any).
        """
        now, samples = metrics.elapsed_s(), metrics.samples
        pushes = sum(metrics.staleness.values())
        total = float(sum(tau * count for tau, count in metrics.staleness.items()))
        seconds, new = now - self._seconds, pushes - self._pushes
        fields = {
            "time": now,
            "samples": samples,
            "steps": metrics.steps,
            "samples_per_second": (samples - self._samples) / seconds if seconds > 0 else 0.0,
            "staleness": (total - self._staleness) / new if new > 0 else None,
            "largest_staleness": max(metrics.staleness, default=0),
            "pushes": list(metrics.pushes),
            "waited_s": list(metrics.waited_s),
        }
        self._samples, self._seconds, self._pushes, self._staleness = samples, now, pushes, total
        self._next = now + LEAST_S * max(1.0, len(metrics.pushes) / _MANY)
        return fields
