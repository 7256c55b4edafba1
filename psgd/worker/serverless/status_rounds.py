"""StatusRounds: what workers without a server learn of each other, and how they end together.

A round is a small all-gather of what each worker did since the round before: samples, loss, pushes, requests. All know
the sums from it. Worker 0 counts; where it may die, all do. A worker whose data is at its end continues with empty
rounds until all are.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.requests import SAVE
from psgd.collectives.mpi import byte_counts
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim.rules import Settings
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.exchange_counts import ExchangeCounts

if TYPE_CHECKING:
    from psgd.collectives import Communicator

_SAMPLES, _LOSS, _PUSHES, _STOP, _DONE, _WAITED, _COMPUTED, _HELD, _REPORTS, _ACCURACY, _TEST_LOSS, _WORDS = range(12)


class StatusRounds:
    """One worker's part.

    Args:
        comm: the workers. Collective over it, blocks.
        metrics: counters; filled on worker 0.
        votes: this worker's requests for checkpoints, passed on with each round; None has none.
        settings: what the rule goes by: after a round all have those of the worker with the most steps behind it, the
            first of such, among those that had steps in it; None: each goes by its own, if any.
        members: which worker each rank of `comm` is, where some have died; None: as the ranks.
        everyone: counts, so that any can take over from worker 0 where that dies; to be told by `count`.

    Attributes:
        request: for a checkpoint: the largest of all in the last round.
        samples: int64 samples of each worker in the last round.
        pushes: int64 steps of each worker in the last round that had samples.
        version: rounds so far in which anybody had samples.
        active: workers that were not at their end in the last round.
        stop: worker 0 asked to stop in the last round, alike on all workers.
        counts: this worker has the run's counters.
        all_done: all workers were at their end in the last round, and had no more evaluations to report.
        waited_s: seconds that the worker has spent in `step`; it adds them itself.
        bytes_sent: of the rounds and what was added to them, by `psgd.collectives.mpi.byte_counts`; as many received.
    """

    def __init__(
        self,
        comm: "Communicator",
        metrics: RunMetrics,
        votes: CheckpointVotes | None = None,
        settings: Settings | None = None,
        members: Sequence[int] | None = None,
        everyone: bool = False,
    ) -> None:
        self.version = self.request = 0
        self._votes = votes or CheckpointVotes()
        self.stop = self.all_done = False
        self.waited_s = 0.0
        self.bytes_sent = 0
        self.active = comm.size
        self.samples = np.zeros(comm.size, np.int64)
        self.pushes = np.zeros(comm.size, np.int64)
        self._comm, self._metrics = comm, metrics
        self.counts, self._everyone = everyone or comm.rank == 0, everyone
        self._members = list(range(comm.size)) if members is None else list(members)
        self._settings, self._steps = settings, np.zeros(comm.size, np.int64)
        words = _WORDS + (0 if settings is None else settings.size)
        self._mine = np.zeros(words)
        self._all = np.zeros((comm.size, words))
        self._gather = comm.Allgather_init(self._mine, self._all.reshape(-1))
        self._began = time.perf_counter()
        self._spoils = False
        self._noted = ExchangeCounts()
        self._before = 0, 0, 0.0
        self._asked = 0
        self._uncounted: StatusRounds | None = None  # who has the last round, which may still be made again
        self._told: tuple[int, tuple[tuple[float, float], ...]] = 0, ()  # version and evaluations before it
        self._reports: deque[tuple[float, float]] = deque()  # one goes with each round
        self._seconds: tuple[float, float] | None = None
        self._held = self._ended = 0.0  # seconds in the last round, and when it ended
        self._ended_before = 0.0  # the one before that
        self._active = np.zeros(comm.size, bool)  # not at their end in the last round

    def begin(self, params: NDArray[np.floating]) -> None:
        """Gives everyone worker 0's parameters; the run's seconds count from here. Collective, blocks."""
        self._comm.Bcast(params, 0)
        self.bytes_sent += byte_counts.bcast(self._comm.size, params.nbytes)
        self._comm.Barrier()  # so that waiting for a rank that starts late is no part of the run
        self._metrics.restart()
        self._began = time.perf_counter()

    def note(self, samples: int, loss: float) -> None:
        """Notes a step for the next round. Does not communicate.

        Args:
            samples: behind its gradient; a step of 0 is not counted.
            loss: mean loss over them.
        """
        self._noted.note(samples, loss)

    def join(self) -> None:
        """What was noted since the last round is one push: gradients that were added up (`accumulate`)."""
        self._noted.pushes = min(1, self._noted.pushes)

    def count_allreduce(self, nbytes: int) -> None:
        """Counts an all-reduce of so many bytes that the worker has made."""
        self.bytes_sent += byte_counts.allreduce(self._comm.size, nbytes)

    def spoil(self) -> None:
        """The next round is to count for nobody: what it would apply has a gradient that is not finite."""
        self._spoils = True

    def forget(self) -> None:
        """Takes back what was noted since the last round: it is not going to be applied."""
        self._noted.clear()

    def report(self, accuracy: float, loss: float) -> None:
        """Counts an evaluation: on worker 0 at once, from others with the next rounds, one with each."""
        if self._comm.rank == 0:
            self._metrics.report(accuracy, loss)
        if self._comm.rank or self._everyone:
            self._reports.append((accuracy, loss))

    def exchange(self, samples: int = 0, loss: float = math.nan, done: bool = False, began: float | None = None) -> int:
        """Tells all of this worker's steps since the last round, and learns the others'. Collective, blocks.

        Args:
            samples: behind the gradient of a step that was not noted; 0 only keeps pace.
            loss: mean loss over them.
            done: this worker has no more steps.
            began: when it began to wait for others, by `time.perf_counter()`; None: now.

        Returns:
            The samples of all workers since the last round.
        """
        self.note(samples, loss)
        noted, reports = self._noted, len(self._reports)
        began = time.perf_counter() if began is None else began
        waited, computed = self._seconds or (self.waited_s, time.perf_counter() - self._began - self.waited_s)
        if done:
            self._seconds = waited, computed
        accuracy, test_loss = self._reports.popleft() if reports else (0.0, 0.0)
        stop = self._metrics.stop + 2 * self._votes.take_request()
        counts = noted.samples, noted.loss, noted.pushes, stop, done, waited, computed, self._held
        self._mine[:_WORDS] = (*counts, reports, accuracy, test_loss)
        if self._spoils:
            self._mine[_SAMPLES], self._spoils = -1, False
        if self._settings is not None:
            self._settings.write(self._mine[_WORDS:])
        self._gather.run()
        ended = time.perf_counter()
        self.bytes_sent += byte_counts.allgather(self._comm.size, self._mine.nbytes)
        self.forget()
        if (self._all[:, _SAMPLES] < 0).any():
            self._all[:, [_SAMPLES, _PUSHES]] = 0
        self.samples[:] = self._all[:, _SAMPLES]
        self.pushes[:] = self._all[:, _PUSHES]
        self.request = int(self._all[:, _STOP].max()) // 2
        self.stop = bool(int(self._all[0, _STOP]) % 2) or self._votes.stopping or self.request > SAVE
        self.active = self._comm.size - int(self._all[:, _DONE].sum())
        self.all_done = self.active == 0 and not (self._all[:, _REPORTS] > 1).any()
        total = int(self.samples.sum())
        self._steps += self.pushes
        if self._settings is not None and self.pushes.any():
            self._settings.read(self._all[np.where(self.pushes > 0, self._steps, -1).argmax(), _WORDS:])
        self._ended_before = self._ended
        self._held, self._ended = ended - began, ended
        self._uncounted = self
        if not self._everyone:
            self.count()
        if total:
            self.version += 1
        return total

    def count(self) -> None:
        """The last round is complete, and not to be made again: it is counted, once, where this worker counts."""
        if self._uncounted is not None and self._uncounted.counts:
            self._uncounted._count()
        self._uncounted = None

    def keep(self) -> None:
        """Before a round that may not be complete."""
        noted, self._asked = self._noted, self._votes.request
        self._before = noted.pushes, noted.samples, noted.loss
        self._told = self.version, tuple(self._reports)

    def put_back(self) -> None:
        """What was noted at the last `keep` is still to be told."""
        noted = self._noted
        noted.pushes, noted.samples, noted.loss = self._before
        self.version, reports = self._told
        self._reports.clear()
        self._reports.extend(reports)
        self._uncounted = None
        self._votes.request = max(self._votes.request, self._asked)

    def take(self, version: int, active: int, stop: int, all_done: int) -> None:
        """A round was complete, as others say, though not here: what came of it."""
        self.count()
        self.version, self.active, self.stop, self.all_done = version, active, bool(stop), bool(all_done)
        self.forget()

    def regrouped(self, comm: "Communicator", members: Sequence[int]) -> "StatusRounds":
        """The same rounds among fewer workers. Collective over `comm`, blocks."""
        made = StatusRounds(comm, self._metrics, self._votes, self._settings, members, self._everyone)
        for name in ("version", "stop", "all_done", "waited_s", "bytes_sent", "_began", "_noted", "_reports"):
            setattr(made, name, getattr(self, name))
        made._before, made._asked, made._told = self._before, self._asked, self._told
        made._seconds, made._uncounted = self._seconds, self._uncounted
        return made

    def free(self) -> None:
        """Ends the call that rounds go through; the communicator stays the caller's."""
        self._gather.Free()

    def _count(self) -> None:
        """Counts a round; worker 0 has counted its own evaluations. Nothing is stale: all have the same parameters."""
        metrics = self._metrics
        self._count_waits(self._all[:, _HELD].tolist())
        for place, (worker, words) in enumerate(zip(self._members, self._all.tolist(), strict=True)):
            metrics.count(worker, int(words[_PUSHES]), int(words[_SAMPLES]), words[_LOSS])
            if words[_DONE]:
                metrics.ended(worker, words[_WAITED], words[_COMPUTED])
            if words[_REPORTS] and (place or self._comm.rank):
                metrics.report(words[_ACCURACY], words[_TEST_LOSS])

    def _count_waits(self, held: list[float]) -> None:
        """Counts who waited in the round before: it ended for all at once, so who waited least came last."""
        least = min(held)
        last = held.index(least)
        for worker, seconds in enumerate(held):
            if self._active[worker] and worker != last:
                self._metrics.held(
                    self._members[worker],
                    self._members[last],
                    self._ended_before - seconds,
                    self._ended_before - least,
                )
        np.equal(self._all[:, _DONE], 0, out=self._active)
