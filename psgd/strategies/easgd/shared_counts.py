"""What the workers of EASGD's shared orders have done, and how worker 0 learns of it.

No message is sent before the end: worker 0 reads the counters in the node's memory now and then.
"""

import time
from collections import Counter
from collections.abc import Mapping

from mpi4py import MPI

from psgd.kernels.memory import counters
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.totals import Sums
from psgd.runtime.agreement import gather
from psgd.runtime.jsonable import JSON, number, pairs, wholes
from psgd.strategies.easgd.shared_centre import SharedCentre

_SHOW_S = 5e-3


class SharedCounts:
    """One worker's; the metrics are filled on worker 0, or on the first one that lives.

    Attributes:
        lr: the learning rate to show.
    """

    def __init__(self, metrics: RunMetrics, workers: MPI.Intracomm, memory: SharedCentre) -> None:
        self._metrics, self._memory, self._lines = metrics, memory, memory.lines
        self._leads = workers.rank == 0
        self._shown = [Sums(0, 0, 0.0)] * workers.size  # what the metrics know of each
        self._staleness: Counter[int] = Counter()
        self._steps = self._counted = 0  # of this worker; of them, in `_staleness`
        self._reports: list[tuple[float, float]] = []
        self._next_show = 0.0
        self.lr = 0.0

    def begin(self) -> None:
        """Where a run resumes: what the lines count by now, the metrics know already."""
        self._shown = [self._lines.line(worker) for worker in range(len(self._shown))]

    def lead(self, dead: list[int]) -> None:
        """Some have died; this worker is the first that lives, and fills its metrics, with all that was done, too."""
        if self._leads:
            for worker in dead:
                self._shown[worker] = self._lines.line(worker)
            return
        self._leads = True
        for evaluation in self._reports:
            self._metrics.report(*evaluation)
        self._reports.clear()

    def note(self, samples: int, loss: float) -> None:
        """Counts a step of this worker; one of 0 samples is none."""
        if samples:
            self._steps += 1
            self._lines.count(samples, loss)

    def exchanged(self, others: int) -> None:
        """Counts the staleness of the steps since this worker's last exchange: the others' exchanges since then."""
        self._staleness[others] += self._steps - self._counted
        self._counted = self._steps

    def look(self) -> None:
        """Worker 0 shows now and then what all have done, and passes on that all shall stop."""
        if not self._leads:
            return
        now = time.perf_counter()
        if now >= self._next_show:
            self._next_show = now + _SHOW_S
            self.show()
        self._pass_stop_on()

    def show(self) -> None:
        """Worker 0's metrics count what is new."""
        if not self._leads:
            return
        # The lines only grow, and the workers write them meanwhile: the metrics get what came since the last time.
        for worker, before in enumerate(self._shown):
            now = self._lines.line(worker)
            if now.steps > before.steps:
                self._metrics.count(
                    worker, now.steps - before.steps, now.samples - before.samples, now.loss - before.loss
                )
                self._shown[worker] = now
        self._metrics.progress(sum(each.samples for each in self._shown), self._memory.exchanges, self.lr)

    def report(self, accuracy: float, loss: float) -> None:
        """Counts an evaluation: worker 0's at once, others' at the end."""
        if self._leads:
            self._metrics.report(accuracy, loss)
            self._pass_stop_on()
        else:
            self._reports.append((accuracy, loss))

    def _pass_stop_on(self) -> None:
        if self._leads and self._metrics.stop:
            self._lines.put_for(0, counters.STOP, 1)  # where all look

    def facts(self, version: int) -> dict[str, JSON]:
        """What a checkpoint keeps of this worker; `version`: exchanges behind its last one."""
        line = self._lines.line(self._lines.place)
        return {
            "exchange": [version, self._counted, self._steps],
            "line": [line.steps, line.samples],
            "loss": line.loss,
            "staleness": self._staleness_counts(),
        }

    def restore(self, facts: Mapping[str, JSON]) -> int:
        """The reverse of `facts`; returns the version."""
        version, self._counted, self._steps = wholes(facts, "exchange", 3)
        steps, samples = wholes(facts, "line", 2)
        self._lines.set_line(Sums(steps, samples, number(facts, "loss")))
        self._staleness.update(pairs(facts, "staleness"))
        return version

    def _staleness_counts(self) -> list[list[int]]:
        return [list(each) for each in self._staleness.items()]

    def set_back(self, worker: int, samples: int) -> None:
        """A worker has died: of its samples only so many have reached the centre."""
        self._lines.put_for(worker, counters.SAMPLES, samples)

    def complete(self, workers: MPI.Intracomm, members: list[int], waited_s: float, computed_s: float) -> None:
        """Puts together what all did. Collective over those that live, blocks; nobody takes steps any more.

        Args:
            workers: those that live.
            members: which worker each rank of them is.
            waited_s: of this worker.
            computed_s: of this worker.
        """
        seconds = [waited_s, computed_s]
        mine = {"staleness": self._staleness_counts(), "seconds": seconds, "reports": self._reports}
        everyone = gather(workers, mine)
        self.show()
        if self._leads:
            # Only a worker knows how stale its steps were: until here the metrics have counted all as fresh.
            self._metrics.staleness.clear()
            for worker, each in zip(members, everyone, strict=True):
                self._metrics.staleness.update(dict(each["staleness"]))
                self._metrics.ended(worker, *each["seconds"])
                for evaluation in each["reports"]:
                    self._metrics.report(*evaluation)
