"""hogwild: parameters in memory that a node's workers share, read and written by all at once without any lock.

Niu, Recht, Re and Wright (2011). Each worker computes on the parameters while others change them, and its step writes
to them in place: w <- w - lr g, element by element. Where two update one element at the same moment, one of the updates
may be lost; elements are never torn. Any update rule works, with a state (momentum, Adam's means) of each worker's own:
it sees that worker's gradients only, and so does its step number.

On several nodes each has a copy of its own, and the copies are averaged every `period` steps of a node's first worker
and at the end (`psgd.strategies.node_averaging`).

For a checkpoint all workers stop writing for a moment (`psgd.worker.checkpoint_barrier`). On several nodes it follows
an averaging, in which the request is told; then each node's first worker calls its own.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd import collectives
from psgd.checkpoint import restore as keeping
from psgd.checkpoint import vectors
from psgd.checkpoint.state import State
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.memory import counters as kernels
from psgd.metrics.totals import Shown, Sums, add
from psgd.runtime.agreement import gather
from psgd.strategies.node_averaging import NodeAveraging
from psgd.worker.checkpoint_barrier import CheckpointBarrier
from psgd.worker.checkpoint_votes import CheckpointVotes
from psgd.worker.context import RunContext
from psgd.worker.liveness import Liveness
from psgd.worker.shared_parameters import SharedParameters

_LOOK_S = 1e-3
_SHOW_S = 5e-3


def create(workers: int, period: int, count_lost: bool) -> Callable[[RunContext], "HogwildWorker"]:
    """The strategy.

    Args:
        workers: how many there are.
        period: steps of a node's first worker between two averagings with other nodes; without effect on one node.
        count_lost: a test mode that counts lost updates; see `HogwildWorker.lost`.
    """
    return partial(HogwildWorker, period=period, count_lost=count_lost)


class HogwildWorker(CheckpointVotes):
    """A worker. Implements `psgd.worker.interface.Worker`. Creating is collective over the workers.

    A step sends no message: what others need to know stands in this worker's cache line of the common memory. Its
    staleness is the number of steps that the node's other workers finished between the end of this worker's last step,
    when it begins to read the parameters, and the beginning of this update: off by the steps that are just being
    written at either moment, at most one of each worker; averagings with other nodes do not count. `version` is all
    workers' steps, those of other nodes as of the last averaging, and so are the samples that the schedule goes by.

    Final are the parameters that all updates left behind, on several nodes their average, weighted by samples.

    Attributes:
        params: the node's common parameters.
        waited_s: seconds spent in averaging; nothing else waits.
        lost: with `count_lost`, known after `finish`: each step also adds 1 to every element of an array of integers
            as wide as the parameters, in the same way, without a lock. This is how many of these additions, all
            elements on all nodes together, did not reach it. For the updates themselves it is a measure, no count:
            they are written just before. The mode makes steps slower.
    """

    def __init__(self, context: RunContext, period: int, count_lost: bool) -> None:
        super().__init__()
        workers: MPI.Intracomm = context.mesh.worker  # type: ignore[assignment]
        self.version = self.lost = 0
        self.waited_s = 0.0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._memory = SharedParameters(workers, context.params, count_lost)
        self.params, self._tally = self._memory.params, self._memory.tally
        self.grads = np.zeros_like(context.params)
        self._stepper = context.optimizer.create(self.params)
        self._context, self._period = context, period
        self._leads = self._memory.place == 0
        self._everyone = collectives.Communicator(workers)
        self._waiter = Waiter.for_node(workers, context.alarm.check)
        self._averaging = self._meet_nodes(workers)
        self._watch = Liveness(workers, context.alarm, "hogwild")
        self._meeting = CheckpointBarrier(
            workers, self, self._watch, Waiter(self._waiter.crowded, self._watch.check), words=2
        )
        self._leaders = [each["leader"] for each in gather(workers, {"leader": self._memory.ranks[0]})]
        self._several = len(set(self._leaders)) > 1
        self._kept: NDArray[np.floating] | None = None  # the node's parameters at the newest cut, on its first worker
        self._resumed = self._goes = False
        self._asked = 0  # this worker's wish that its node's first one is to tell
        self._before = Sums(0, 0, 0.0)  # what other numbers of workers did, before this run went on from there
        self._tallied = 0  # steps of this node that its tally has not seen
        self._at_cut = [0, 0]
        self._shown = Shown(context.metrics) if workers.rank == 0 else None
        self._staleness: Counter[int] = Counter()
        self._reports: list[tuple[float, float]] = []
        self._averaged_at = self._memory.steps()  # of each worker of the node, at the last averaging
        self._calls = self._others = 0
        self._began = self._next_look = self._next_show = 0.0

    def _meet_nodes(self, workers: MPI.Intracomm) -> NodeAveraging | None:
        color = 0 if self._leads else MPI.UNDEFINED
        leaders: MPI.Intracomm = workers.Split(color, workers.rank)  # type: ignore[assignment]
        if not self._leads:
            return None
        try:
            return NodeAveraging(leaders, self.params) if leaders.size > 1 else None
        finally:
            leaders.Free()

    def start(self) -> None:
        """See `Worker`."""
        self._memory.compile()
        if not self._resumed:
            self._everyone.Bcast(self._context.params, 0)
            if self._leads:
                self.params[:] = self._context.params
        if self._leads:
            self._put_far()
        self._everyone.Barrier()
        if self._resumed:
            near = self._memory.sums()
            self._averaged_at, self._tallied = self._memory.steps(), near.steps
            self.version, _, _, _ = self._memory.totals()
            self._others = self.version - self._stepper.version
            if self._shown is not None:
                self._shown.begin(add(near, self._far()))
            self._everyone.Barrier()  # until all have read what nobody adds to yet
        self._context.metrics.restart()
        self._began = time.perf_counter()

    def overlap(self, samples: int) -> None:
        """See `Worker`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Worker`. Waits for nobody, but where a node's first worker averages with other nodes."""
        now = time.perf_counter()
        self.saving = False
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            self._context.alarm.check()
            self._show(now)
        stepper, memory = self._stepper, self._memory
        if samples:
            steps, seen, _, _ = memory.totals()
            self._staleness[steps - stepper.version - self._others] += 1
            stepper.take(self.grads, self._context.optimizer.reduction_factor, seen)
            if self._tally is not None:
                kernels.add_one(self._tally)
            memory.count(samples, loss)
        self._calls += 1
        if self._averaging is not None and self._calls % self._period == 0:
            start = time.perf_counter()
            self._average(self._averaging, done=False)
            self.waited_s += time.perf_counter() - start
        if self._come():
            start = time.perf_counter()
            self._cut()
            self.waited_s += time.perf_counter() - start
        self.version, _, _, stop = memory.totals()
        self._others = self.version - stepper.version
        self.stop = stop != 0 or self.leaving

    def _come(self) -> bool:
        """Whether this worker is to be cut here; calls the others where it is the one to do so."""
        meeting, goes, self._goes = self._meeting, self._goes, False
        if goes:
            return True
        if meeting.wanted(self._calls):
            if not self._several:
                meeting.call(range(self._everyone.size))
                return True
            self._asked = max(self._asked, self.told(), 1)
            self._memory.put(kernels.WISH, self._asked)
        return meeting.called()

    def _cut(self) -> None:
        """Nobody writes now; the node's first worker keeps the parameters, which others may change once they go on."""
        callers = self._memory.ranks[:1] if self._several else None
        told = self._meeting.come(self._calls, words=self._memory.line()[:2], callers=callers)
        self._at_cut = (told.sum(0) + self._before[:2]).astype(int).tolist()
        if self._leads:
            self._kept = np.empty_like(self.params) if self._kept is None else self._kept
            self._kept[:] = self.params
        self._asked = 0
        self._memory.put(kernels.WISH, 0)
        self._show(math.inf)
        self._meeting.part()

    def state(self) -> State:
        """See `Worker`. Each node's first worker saves the parameters; of several nodes, the run's are their mean."""
        tensors = dict(self._stepper.arrays)
        version, samples = self._at_cut
        facts: dict[str, Any] = {"version": version, "samples": samples, "steps": self._stepper.version}
        facts |= {"calls": self._calls, "line": self._memory.line(), "before": list(self._before)}
        facts |= {"leaders": self._leaders, "staleness": [list(each) for each in self._staleness.items()]}
        if self._kept is not None:
            tensors["params"] = self._kept
        if self._averaging is not None:
            facts["nodes"] = self._averaging.known()
        return State(tensors, facts | self.facts())

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Worker`."""
        self._resumed = True
        saved = keeping.saved(state, others)
        self.resume(saved)
        same = state is not None and keeping.fact(state, "leaders") == self._leaders
        lines = [] if same else ["the nodes' parameters: all begin with the mean"]
        if self._leads:
            self.params[:] = vectors.weights(saved if same else list(others))
        if state is None:
            self._before = Sums(keeping.common(saved, "version"), keeping.common(saved, "samples"), 0.0)
            return lines * (len(keeping.has({"params": self.params}, saved)) > 1) + self._stepper.share(saved)
        keeping.put_back(self._stepper.arrays, state)
        self._stepper.version, self._calls = (int(keeping.fact(state, name)) for name in ("steps", "calls"))
        self._memory.set_line(*keeping.fact(state, "line"))
        self._before = Sums(*keeping.fact(state, "before"))
        self._staleness.update(dict(keeping.fact(state, "staleness")))
        if same and self._averaging is not None:
            self._averaging.resume(keeping.fact(state, "nodes"))
        return lines

    def report(self, accuracy: float, loss: float) -> None:
        """See `Worker`. Worker 0's counts at once, others' at the end."""
        if self._shown is None:
            self._reports.append((accuracy, loss))
        else:
            self._context.metrics.evaluated(accuracy, loss, self._context.metrics.elapsed_s())
            self._pass_stop_on()

    def finish(self) -> None:
        """See `Worker`."""
        computed_s = time.perf_counter() - self._began - self.waited_s
        self._memory.put(kernels.DONE, 1)
        if self._averaging is not None:
            self._average_to_the_end(self._averaging)
            self.bytes_sent = self.bytes_received = self._averaging.bytes_sent
        here = np.zeros(self._everyone.size, np.int64)
        request = self._everyone.Iallgather(np.zeros(1, np.int64), here)

        def all_here() -> bool:
            self._show(time.perf_counter())
            self._cut_if_called()
            return bool(request.Test())

        Waiter(self._waiter.crowded).until(all_here)  # the request looks for the alarm and for lost ranks itself
        self._context.params[:] = self.params
        self._count(computed_s)
        self._watch.close()
        self._everyone.free()

    def _cut_if_called(self) -> None:
        """While it waits for the end."""
        if self._meeting.called():
            self._cut()
            self.on_cut()

    def _average(self, averaging: NodeAveraging, done: bool) -> bool:
        """A round; returns whether it was the last."""
        sums, steps = self._memory.sums(), self._memory.steps()
        last = averaging.round(sums, done, self._context.metrics.stop, self._memory.wish())
        self._averaged_at = steps
        self._put_far()
        self._memory.put(kernels.STOP, int(averaging.stop))
        if averaging.wish and not last:
            self.wish, self._goes = max(self.wish, averaging.wish), True
            self._meeting.call(self._memory.ranks)
        return last

    def _far(self) -> Sums:
        """What this node's workers have not done."""
        return self._before if self._averaging is None else add(self._before, self._averaging.far)

    def _put_far(self) -> None:
        far = self._far()
        self._memory.put(kernels.FAR_STEPS, far.steps)
        self._memory.put(kernels.FAR_SAMPLES, far.samples)

    def _average_to_the_end(self, averaging: NodeAveraging) -> None:
        """Takes part until all nodes are done: at once where this one is, else as often as its workers would."""

        def due() -> bool:
            self._show(time.perf_counter())
            active = self._memory.active()
            now, then = self._memory.steps(), self._averaged_at
            return not active or any(now[place] - then[place] >= self._period for place in active)

        last = False
        while not last:
            self._waiter.until(due)
            last = self._average(averaging, done=self._memory.all_done())
            if self._come():
                self._cut()
                self.on_cut()
        averaging.free()

    def _show(self, now: float) -> None:
        """Worker 0 takes over, now and then, what all have done."""
        if self._shown is None or now < self._next_show:
            return
        if now < math.inf:
            self._next_show = now + _SHOW_S
        metrics, near = self._context.metrics, self._memory.sums()
        for worker, steps in zip(self._memory.ranks, self._memory.steps(), strict=True):
            metrics.pushes[worker] = steps
        self._shown.count(add(near, self._far()), self._stepper.lr)
        self._pass_stop_on()

    def _pass_stop_on(self) -> None:
        if self._context.metrics.stop:
            self._memory.put(kernels.STOP, 1)

    def _count(self, computed_s: float) -> None:
        """Puts together what all did: on worker 0 for the metrics, on all the sum of lost updates."""
        mine: dict[str, object] = {
            "steps": self._memory.line()[0],
            "staleness": list(self._staleness.items()),
            "waited": self.waited_s,
            "computed": computed_s,
            "reports": self._reports,
            "node": [0, 0, 0.0],
            "lost": 0,
        }
        if self._leads:
            mine["node"] = near = self._memory.sums()
            if self._tally is not None:
                mine["lost"] = (near.steps - self._tallied) * self._tally.size - int(self._tally.sum(dtype=np.int64))
        told = gather(self._context.mesh.worker, mine)  # type: ignore[arg-type]
        self.lost = sum(each["lost"] for each in told)
        self.version = self._before.steps + sum(each["steps"] for each in told)
        if self._shown is not None:
            self._shown.complete(told)
            total = Sums(*(sum(part) for part in zip(*(each["node"] for each in told), strict=True)))
            self._shown.count(add(total, self._before), self._stepper.lr)
