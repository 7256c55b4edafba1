"""What hogwild's workers have done: staleness, lost updates and evaluations, and how worker 0 learns of it.

No message is sent before the end: worker 0 reads the counters in the node's memory now and then.
"""

import math
from collections import Counter
from typing import Any

from mpi4py import MPI

from psgd.kernels.memory import counters
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.totals import Shown, Sums, add
from psgd.runtime.agreement import gather
from psgd.strategies.hogwild.nodes import NodeCopies
from psgd.worker.serverless.shared_parameters import SharedParameters

_SHOW_S = 5e-3


class HogwildCounts:
    """One worker's; the metrics are filled on worker 0, or on the first one that lives.

    Attributes:
        staleness: of this worker's updates.
        tallied: additions to the tally that this worker has made.
        lost: additions to the tally that did not reach it; known after `complete`.
    """

    def __init__(self, metrics: RunMetrics, worker: int, memory: SharedParameters, nodes: NodeCopies) -> None:
        self._metrics, self._memory, self._nodes = metrics, memory, nodes
        self._shown = Shown(metrics) if worker == 0 else None
        self._before: Sums | None = None  # this run resumed
        self.staleness: Counter[int] = Counter()
        self.tallied = self.lost = 0
        self._reports: list[tuple[float, float]] = []
        self._next_show = 0.0
        self._size = len(metrics.pushes)

    def begin(self) -> None:
        """Where a run resumes: what the node's memory counts by now, the metrics know already."""
        self._before = add(self._memory.lines.sums(), self._nodes.far())
        if self._shown is not None:
            self._shown.begin(self._before)

    def lead(self) -> None:
        """The workers before this one have died: from now on its metrics are filled, with all that was done, too."""
        if self._shown is None:
            self._shown = Shown(self._metrics)
            if self._before is not None:
                self._shown.begin(self._before)
            for evaluation in self._reports:
                self._metrics.report(*evaluation)
            self._reports.clear()

    def show(self, now: float, lr: float) -> None:
        """Worker 0 reads now and then what all have done; at once where `now` is infinite."""
        if self._shown is None or now < self._next_show:
            return
        if now < math.inf:
            self._next_show = now + _SHOW_S
        lines = self._memory.lines
        for worker, steps in zip(self._memory.ranks, lines.steps(), strict=True):
            self._metrics.pushes[worker] = steps
        self._shown.count(add(lines.sums(), self._nodes.far()), lr)
        self._pass_stop_on()

    def report(self, accuracy: float, loss: float) -> None:
        """Counts an evaluation: worker 0's at once, others' at the end."""
        if self._shown is None:
            self._reports.append((accuracy, loss))
        else:
            self._metrics.report(accuracy, loss)
            self._pass_stop_on()

    def _pass_stop_on(self) -> None:
        if self._metrics.stop:
            self._memory.lines.put_for(0, counters.STOP, 1)  # where all look

    def complete(
        self, workers: MPI.Intracomm, waited_s: float, computed_s: float, lr: float, members: list[int]
    ) -> int:
        """Puts together what all did. Collective, blocks; nobody takes steps any more.

        Of workers that have died it is known how many steps they took, but not how stale these were.

        Args:
            workers: those that live.
            waited_s: of this worker.
            computed_s: of this worker.
            lr: the newest rate.
            members: which worker each rank of them is.

        Returns:
            The steps of all workers.
        """
        lines, tally = self._memory.lines, self._memory.tally
        mine: dict[str, Any] = {
            "steps": lines.line(lines.place).steps,
            "staleness": list(self.staleness.items()),
            "waited": waited_s,
            "computed": computed_s,
            "reports": self._reports,
            "node": [0, 0, 0.0],
            "lost": self.tallied,
        }
        if self._nodes.leads or self._shown is not None:  # where the node's first is dead, the first that lives
            mine["node"] = lines.sums()
            if tally is not None:
                mine["lost"] -= int(tally.sum(dtype="int64"))
        living = dict(zip(members, gather(workers, mine), strict=True))
        everyone = [living.get(worker) or self._of_dead(worker) for worker in range(self._size)]
        self.lost = sum(each["lost"] for each in everyone)
        if self._shown is not None:
            self._shown.complete(everyone)
            total = Sums(*(sum(part) for part in zip(*(each["node"] for each in everyone), strict=True)))
            self._shown.count(add(total, self._nodes.before), lr)
        steps: int = self._nodes.before.steps + sum(each["steps"] for each in everyone)
        return steps

    def _of_dead(self, worker: int) -> dict[str, Any]:
        steps = self._memory.lines.line(worker).steps
        return {
            "steps": steps,
            "staleness": [],
            "waited": 0,
            "computed": 0,
            "reports": [],
            "node": [0, 0, 0],
            "lost": 0,
        }
