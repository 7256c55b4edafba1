"""What happened in a run, counted on one rank at least: pushes and their staleness, waits, losses, evaluations."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from psgd.metrics.push_numbers import PushNumbers
from psgd.metrics.wait_log import WaitLog
from psgd.runtime.jsonable import JSON, fact, number, numbers, section, whole, wholes

Event = Literal["progress", "epoch", "eval"]
_NAP_S = 0.1
_COUNTS = ("_next_epoch", "_loss_samples", "samples", "steps", "since_best")
_NUMBERS = ("_loss_sum", "lr")
_NEWER: dict[str, JSON] = {"best_accuracy": None, "since_best": 0}
"""Counters that checkpoints of earlier versions lack, with what they are then."""
_OPTIONAL = ("_epoch_loss", "accuracy", "test_loss", "seconds_to_target", "best_accuracy")
_COUNTS_BY_WORKER = ("pushes", "waited", "dropped")
_SECONDS_BY_WORKER = ("waited_s", "computed_s")


class RunMetrics:
    """Counters of a run.

    Args:
        workers: number of workers.
        on_event: called with this object and "progress" at most ten times a second, "epoch" whenever the samples
            applied pass a whole epoch, and "eval" at each evaluation.
        samples_per_epoch: size of the training set; 0 if there are no epochs.
        target_accuracy: `stop` is set once an evaluation reaches it; 0 is off.
        waits: where each wait for another worker is kept; None keeps none.
        patience: `stop` is set after so many evaluations in a row that were not better than all before; 0 is off.

    Attributes:
        samples_per_epoch, waits: as given.
        leads: what happens is said, and `on_event` called; else it is only counted, for who may have to lead.
        staleness: pushes by staleness (version at apply minus version pulled). Pushes of 0 samples do not count.
        pushes: pushes applied, by worker. Those of 0 samples do not count.
        waited: pushes, by worker, after which it had to wait for another's push or end, those of 0 samples too. Without
            servers: rounds in which another worker came later.
        push_numbers: of this rank's pushes, where there are servers.
        dropped: pushes that arrived and were never applied, by worker: those that waited for others when the run broke.
        samples: samples applied.
        steps: groups applied.
        lr: rate of the newest step.
        loss: mean training loss of the newest whole epoch, or of all samples before the first ends.
        waited_s: seconds by worker in `step`, by its own report once it is done; before that, those for which it is
            known to have waited for another worker.
        computed_s: all its other seconds, known once it is done.
        accuracy, test_loss: newest evaluation (None before the first).
        best_accuracy: of all evaluations (None before the first).
        since_best: evaluations since that one.
        stop: workers should stop at their next step.
        seconds_to_target: when the target was reached, or None.
    """

    def __init__(
        self,
        workers: int,
        on_event: Callable[["RunMetrics", Event], None] | None = None,
        samples_per_epoch: int = 0,
        target_accuracy: float = 0.0,
        waits: WaitLog | None = None,
        patience: int = 0,
    ) -> None:
        self.staleness: Counter[int] = Counter()
        self.pushes = [0] * workers
        self.waited = [0] * workers
        self.dropped = [0] * workers
        self.push_numbers = PushNumbers(workers)
        self.waits = waits
        self.leads = True
        self.samples = 0
        self.steps = 0
        self.lr = 0.0
        self.waited_s = [0.0] * workers
        self.computed_s = [0.0] * workers
        self.accuracy: float | None = None
        self.test_loss: float | None = None
        self.best_accuracy: float | None = None
        self.since_best = 0
        self.stop = False
        self.seconds_to_target: float | None = None
        self._on_event = on_event
        self.samples_per_epoch = samples_per_epoch
        self._target, self._patience = target_accuracy, patience
        self._started = time.perf_counter()
        self._next_event = 0.0
        self._next_epoch = samples_per_epoch
        self._epoch_loss: float | None = None
        self._loss_sum = 0.0
        self._loss_samples = 0

    def restart(self) -> None:
        """Starts the run's clock: all seconds count from now."""
        self._started = time.perf_counter()

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    @property
    def epoch(self) -> int:
        """Whole epochs of samples applied."""
        return self.samples // self.samples_per_epoch if self.samples_per_epoch else 0

    @property
    def loss(self) -> float:
        """Mean loss; see the class. NaN before the first push that names one."""
        if self._epoch_loss is not None:
            return self._epoch_loss
        return self._mean_loss()

    def _mean_loss(self) -> float:
        return self._loss_sum / self._loss_samples if self._loss_samples else float("nan")

    def applied(self, worker: int, samples: int, loss: float, staleness: int) -> None:
        """A push is being applied; `loss` is the mean over its samples. The rest is as for `count`."""
        self.count(worker, 1, samples, loss * samples, staleness)

    def count(self, worker: int, pushes: int, samples: int, loss: float, staleness: int = 0) -> None:
        """Several pushes of a worker were applied.

        Args:
            worker: whose.
            pushes: how many, with samples; 0 if they are counted elsewhere.
            samples: behind all of them.
            loss: sum over the samples.
            staleness: of each: the version that it is applied to minus the version that it was computed on.
        """
        if pushes:
            self.staleness[staleness] += pushes
            self.pushes[worker] += pushes
        self._loss_sum += loss
        self._loss_samples += samples

    def held(self, worker: int, other: int, start: float, stop: float) -> None:
        """A worker had to wait until another arrived.

        Args:
            worker: who waited.
            other: for whom.
            start: from when, by this process's `time.perf_counter()`.
            stop: until when.
        """
        self.waited[worker] += 1
        self.waited_s[worker] += stop - start
        if self.waits is not None:
            self.waits.add(worker, other, start - self._started, stop - self._started)

    def progress(self, samples: int, version: int, lr: float) -> None:
        """A group was applied: samples in all, version reached, learning rate used."""
        self.samples, self.steps, self.lr = samples, version, lr
        if self.samples_per_epoch and samples >= self._next_epoch:
            self._next_epoch = (self.epoch + 1) * self.samples_per_epoch
            self._epoch_loss = self._mean_loss()
            self._loss_sum, self._loss_samples = 0.0, 0
            self._tell("epoch")
        elif self._on_event is not None:
            now = time.perf_counter()
            if now >= self._next_event:
                self._next_event = now + _NAP_S
                self._tell("progress")

    def tell_next(self) -> None:
        """The next progress is told at once, however soon after the last: something has held it up."""
        self._next_event = 0.0

    def report(self, accuracy: float, loss: float, seconds: float | None = None) -> None:
        """The parameters were evaluated, `seconds` after the start; None is just now."""
        self.accuracy, self.test_loss = accuracy, loss
        if accuracy > (-math.inf if self.best_accuracy is None else self.best_accuracy):
            self.best_accuracy, self.since_best = accuracy, 0
        else:
            self.since_best += 1
        if self._patience and self.since_best >= self._patience:
            if not self.stop and self.leads:
                from psgd.kernels.notice import say

                say(f"stopping early: the last {self.since_best} evaluations were not better than the best before")
            self.stop = True
        if self._target and accuracy >= self._target and not self.stop:
            self.stop = True
            self.seconds_to_target = self.elapsed_s() if seconds is None else seconds
        self._tell("eval")

    def _tell(self, event: Event) -> None:
        if self._on_event is not None and self.leads:
            self._on_event(self, event)

    def ended(self, worker: int, waited_s: float, computed_s: float) -> None:
        """A worker has no more pushes: its seconds in `step`, and its others."""
        self.waited_s[worker], self.computed_s[worker] = waited_s, computed_s

    def facts(self) -> dict[str, JSON]:
        """All counters, for a checkpoint."""
        return {
            **{name: int(getattr(self, name)) for name in _COUNTS},
            **{name: float(getattr(self, name)) for name in _NUMBERS},
            **{name: None if (value := getattr(self, name)) is None else float(value) for name in _OPTIONAL},
            **{name: getattr(self, name) for name in (*_COUNTS_BY_WORKER, *_SECONDS_BY_WORKER)},
            "staleness": {str(tau): pushes for tau, pushes in self.staleness.items()},
            "elapsed_s": self.elapsed_s(),
        }

    def restore(self, facts: Mapping[str, JSON]) -> None:
        """Goes on from what `facts` gave; what is counted by worker only where there are as many workers.

        Raises:
            CheckpointError: something is missing, or is something else. Then nothing has changed.
        """
        facts = _NEWER | dict(facts)
        found: dict[str, JSON] = {name: whole(facts, name) for name in _COUNTS}
        found |= {name: number(facts, name) for name in _NUMBERS}
        found |= {name: None if fact(facts, name) is None else number(facts, name) for name in _OPTIONAL}
        found |= {name: wholes(facts, name) for name in _COUNTS_BY_WORKER}
        found |= {name: numbers(facts, name) for name in _SECONDS_BY_WORKER}
        staleness = section(facts, "staleness")
        found["staleness"] = Counter({int(tau): whole(staleness, tau) for tau in staleness if tau.isdecimal()})
        elapsed_s = number(facts, "elapsed_s")
        for name, value in found.items():
            if not isinstance(value, list) or len(value) == len(self.pushes):
                setattr(self, name, value)
        self._started = time.perf_counter() - elapsed_s

    def staleness_summary(self) -> dict[str, object]:
        """Mean, maximum and histogram (staleness as text to pushes) of all pushes."""
        count = sum(self.staleness.values())
        mean = sum(tau * n for tau, n in self.staleness.items()) / count if count else 0.0
        return {
            "mean": mean,
            "max": max(self.staleness, default=0),
            "histogram": {str(tau): self.staleness[tau] for tau in sorted(self.staleness)},
        }
