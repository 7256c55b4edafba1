"""hogwild: parameters in memory that a node's workers share, read and written by all at once without any lock.

Niu, Recht, Re and Wright (2011). Each worker computes on the parameters while others change them, and its step writes
to them in place: w <- w - lr g, element by element. Where two update one element at the same moment, one of the updates
may be lost; elements are never torn. An element whose step is 0 is not written, so that workers whose gradients have
no element in common lose nothing (but with weight decay, which changes every element). Any update rule works, with a
state (momentum, Adam's means) of each worker's own: it sees that worker's gradients only, and so does its step number.

On several nodes each has a copy of its own, and the copies are averaged every `period` steps of a node's first worker
and at the end (`nodes.py`).

For a checkpoint all workers stop writing for a moment (`psgd.worker.serverless.checkpoint_barrier`). On several nodes
it follows an averaging, which passes the request on; then each node's first worker calls its own.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from psgd.checkpoint import restore, vectors
from psgd.checkpoint.declared import Fact, Item, OwnFacts
from psgd.checkpoint.requests import SAVE
from psgd.checkpoint.state import State
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.memory import counters
from psgd.metrics.totals import Sums
from psgd.metrics.trace.span import Span, Traceable
from psgd.runtime.jsonable import JSON, fact, numbers, pairs, whole
from psgd.strategies.hogwild.counts import HogwildCounts
from psgd.strategies.hogwild.nodes import NodeCopies
from psgd.worker.context import Alone, RunContext
from psgd.worker.interface import Vector, Worker
from psgd.worker.serverless.free_running import FreeRunningWorker
from psgd.worker.serverless.shared_parameters import SharedParameters

_LOOK_S = 1e-3


def create(workers: int, period: int, count_lost: bool) -> Callable[[RunContext], Worker]:
    """The strategy.

    Args:
        workers: how many there are.
        period: steps of a node's first worker between two averagings with other nodes; without effect on one node.
        count_lost: a test mode that counts lost updates; see `HogwildWorker.lost`.
    """
    make = partial(_worker, period=period, count_lost=count_lost)
    return Alone(make) if count_lost else make


def _worker(context: RunContext, period: int, count_lost: bool) -> Worker:
    """Collective over the workers, blocks."""
    if context.mesh.survival is not None:
        from psgd.strategies.hogwild.surviving_hogwild import Survives, on_one_node

        if on_one_node(context.mesh):
            kind = type("SurvivingHogwildWorker", (Survives, HogwildWorker), {})
            return cast(Worker, kind(context, period, count_lost))
    return HogwildWorker(context, period, count_lost)


class HogwildWorker(FreeRunningWorker):
    """A worker. Creating is collective over the workers.

    A step sends no message: what others need to know stands in this worker's cache line of the common memory. Its
    staleness is the number of steps that the node's other workers finished between the end of this worker's last step,
    when it begins to read the parameters, and the beginning of this update: off by the steps that are just being
    written at either moment, at most one of each worker; averagings with other nodes do not count. `version` is all
    workers' steps, those of other nodes as of the last averaging, and so are the samples that the schedule goes by.

    Final are the parameters that all updates left behind, on several nodes their average, weighted by samples.

    Attributes:
        params: the node's common parameters.
        waited_s: seconds spent in averaging; nothing else waits.
        lost: with `count_lost`, known after `finish`: each step also adds 1 to an array of integers as wide as the
            parameters, wherever its gradient is not 0, in the same way, without a lock. This is how many of these
            additions, all elements on all nodes together, did not reach it. For the updates themselves it is a
            measure, no count: they are written just before. The mode makes steps slower.
    """

    def __init__(self, context: RunContext, period: int, count_lost: bool) -> None:
        self._memory = SharedParameters(context.workers, context.params, count_lost)
        super().__init__(context, self._memory.params, "hogwild", words=2)
        self._given, self._lines, self._tally = context.params, self._memory.lines, self._memory.tally
        rule = context.optimizer.rule
        sparse = rule._replace(update=rule.sparse or rule.update)
        self._optimizer = replace(context.optimizer, rule=sparse).create(self.params)
        self._factor = context.optimizer.reduction_factor
        self._nodes = NodeCopies(self._workers, self._memory, period)
        self._counts = HogwildCounts(self._metrics, self._index, self._memory, self._nodes)
        self._kept_params: Vector | None = None  # the node's at the newest checkpoint, on its first worker
        self._steps_then = self._samples_then = 0  # those of all workers at the newest checkpoint
        self._members = list(range(context.workers.size))  # which workers there are
        self._lost = np.zeros(2)  # steps and samples of workers that have died
        self._enters = False  # this worker's node is called to the checkpoint, as an averaging has said
        self._passed_on = 0  # this worker's request, which its node's first worker passes on
        self._calls = self._others = 0
        self._begun = self._lines.samples()  # of each worker of the node, where this run began
        self._next_look = 0.0

    @property
    def lost(self) -> int:
        return self._counts.lost

    def start(self) -> None:
        self._lines.compile()
        if not self._resumed:
            self._comm.Bcast(self._given, 0)
            if self._nodes.leads:
                self.params[:] = self._given
        if self._nodes.leads:
            self._nodes.publish()
        self._comm.Barrier()
        if self._resumed:
            self._nodes.begin()
            self._counts.begin()
            self._begun = self._lines.samples()
            self.version, _, _, _ = self._lines.totals()
            self._others = self.version - self._optimizer.version
            self._comm.Barrier()  # until all have read what nobody adds to yet
        self._metrics.restart()
        self._began = time.perf_counter()

    def step(self, samples: int, loss: float) -> None:
        """Waits for nobody, but where a node's first worker averages with other nodes."""
        now = time.perf_counter()
        self.checkpoint.reached = False
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            self._liveness.check()
            self._counts.show(now, self._optimizer.lr)
        optimizer, lines = self._optimizer, self._lines
        if samples:
            steps, seen, _, _ = lines.totals()
            self._counts.staleness[steps - optimizer.version - self._others] += 1
            optimizer.take(self.grads, self._factor, seen)
            if self._tally is not None:
                self._counts.tallied += counters.add_one(self._tally, self.grads)
            lines.count(samples, loss)
        self._calls += 1
        if self._nodes.due(self._calls):
            start = time.perf_counter()
            self._average(done=False)
            self.waited_s += time.perf_counter() - start
        if self._is_called():
            start = time.perf_counter()
            self._save_together()
            self.waited_s += time.perf_counter() - start
        self.version, _, _, stop = lines.totals()
        self._others = self.version - optimizer.version
        self.stop = stop != 0 or self.checkpoint.stopping

    def spans(self) -> list[Traceable]:
        return [Span(self._optimizer, "take", "apply"), Span(self, "_average", "all-reduce")]

    def _average(self, done: bool) -> bool:
        """Averages with other nodes; returns whether it was the last time. A request of any node calls this one."""
        last = self._nodes.average(done, self._metrics.stop)
        if request := self._nodes.request:
            self._votes.request = max(self._votes.request, request)
            self._enters = True
            self._barrier.call(self._memory.ranks)
        return last

    def _is_called(self) -> bool:
        """Whether this worker is to enter the barrier here; calls the others where it is the one to do so."""
        enters, self._enters = self._enters, False
        if enters:
            return True
        if not self._nodes.several:
            return self._barrier.due(self._calls)
        if self._barrier.wanted(self._calls):
            # Other nodes must be averaged with before: the node's first worker reads this and passes it on.
            self._passed_on = max(self._passed_on, self._votes.take_request(), SAVE)
            self._lines.put(counters.WISH, self._passed_on)
        return self._barrier.called()

    def _checkpoint(self) -> None:
        """Nobody writes now; the node's first worker keeps the parameters, which others may change as they continue."""
        callers = self._memory.ranks[:1] if self._nodes.several else None
        words = self._barrier.enter(self._calls, words=self._lines.line(self._lines.place)[:2], callers=callers)
        self._steps_then, self._samples_then = (words.sum(0) + self._lost + self._nodes.before[:2]).astype(int).tolist()
        if self._nodes.leads:
            self._kept_params = np.empty_like(self.params) if self._kept_params is None else self._kept_params
            self._kept_params[:] = self.params
        self._passed_on = 0
        self._lines.put(counters.WISH, 0)
        self._counts.show(math.inf, self._optimizer.lr)
        self._barrier.leave()

    def report(self, accuracy: float, loss: float) -> None:
        self._counts.report(accuracy, loss)

    def finish(self) -> None:
        computed_s = self._computed_s
        self._end()
        self._given[:] = self.params
        self.version = self._counts.complete(
            self._workers, self.waited_s, computed_s, self._optimizer.lr, self._members
        )
        self._close()

    def _end(self) -> None:
        """Waits until all are done. Blocks."""
        self._say_done()
        if self._nodes.averages:
            self._average_to_the_end()
        here = np.zeros(self._comm.size, np.int64)
        request = self._comm.Iallgather(np.zeros(1, np.int64), here)

        def all_here() -> bool:
            self._show()
            self._meet_if_called()
            return bool(request.Test())

        Waiter(self._waiter.crowded).until(all_here)  # the request looks for the alarm and for lost ranks itself

    def _say_done(self) -> None:
        self._lines.put(counters.DONE, 1)

    def _show(self) -> None:
        self._counts.show(time.perf_counter(), self._optimizer.lr)

    def _average_to_the_end(self) -> None:
        """Takes part in averagings until all nodes are done."""
        last = False
        while not last:
            self._nodes.wait_until_due(self._waiter, self._show)
            last = self._average(done=self._lines.all_done())
            if self._is_called():
                self._checkpoint()
                self.checkpoint.on_reached()
        self.bytes_sent = self.bytes_received = self._nodes.free()

    def _kept(self) -> list[Item]:
        """Without the parameters, which a node's first worker saves for its node."""
        return [
            *self._optimizer.kept(),
            Fact("version", self, "_steps_then"),
            Fact("samples", self, "_samples_then"),
            OwnFacts(self._own_facts, self._restore_own),
            self._votes,
        ]

    def _own_facts(self) -> dict[str, JSON]:
        return {
            "calls": self._calls,
            "line": list(self._lines.line(self._lines.place)),
            "before": list(self._nodes.before),
            "staleness": [list(each) for each in self._counts.staleness.items()],
        }

    def _restore_own(self, facts: Mapping[str, JSON]) -> None:
        self._calls = whole(facts, "calls")
        self._lines.set_line(_sums(facts, "line"))
        self._nodes.before = _sums(facts, "before")
        self._counts.staleness.update(pairs(facts, "staleness"))

    def state(self) -> State:
        """With the parameters of each node; the run's are their mean."""
        state = super().state()
        state.facts["leaders"] = self._nodes.leaders
        if self._kept_params is not None:
            state.tensors["params"] = self._kept_params
        if (known := self._nodes.known()) is not None:
            state.facts["nodes"] = known
        return state

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """Each node gets back its own parameters where all workers are on the nodes that they were on."""
        same = state is not None and fact(state.facts, "leaders") == self._nodes.leaders
        copies = len(restore.has({"params": self.params}, others)) if state is None else 2
        lines = ["the nodes' parameters: all start from the mean"] if not same and copies > 1 else []
        if self._nodes.leads:
            weights = vectors.weights([state] if same and state is not None else list(others))
            self.params[:] = restore.fitting("params", self.params, weights)
        lines += super().restore(state, others)
        if state is None:
            self._nodes.before = Sums(self._steps_then, self._samples_then, 0.0)
        elif same and self._nodes.averages:
            self._nodes.resume(state.facts)
        return lines


def _sums(facts: Mapping[str, JSON], name: str) -> Sums:
    steps, samples, loss = numbers(facts, name, 3)
    restore.check_counts(name, np.array([steps, samples]))
    return Sums(int(steps), int(samples), loss)
