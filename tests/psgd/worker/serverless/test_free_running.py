"""A worker that does not keep pace, made of the common part alone: checkpoints, in steps or at the end."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.checkpoint.declared import Arrays, Combine
from psgd.collectives import Communicator
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.alarm import Alarm
from psgd.worker.context import RunContext
from psgd.worker.serverless.free_running import FreeRunningWorker


class Wanderer(FreeRunningWorker):
    """Counts its steps."""

    def __init__(self, comm):
        self.alarm = Alarm(comm, [rank for rank in range(comm.size) if rank != comm.rank], comm.rank)
        mesh = SimpleNamespace(worker=comm, workers=comm.size, index=comm.rank)
        context = RunContext(mesh, np.zeros(2), None, RunMetrics(comm.size), None, self.alarm, Communicator)
        super().__init__(context, context.params, "wanderer", words=1)
        self.known = []

    def _take_step(self, samples, loss):
        self.params += 1
        self.version += 1
        self._meet(self.version)

    def _checkpoint(self):
        self.known.append(self._barrier.enter(self.version, words=[self.params[0]])[:, 0].tolist())
        self._barrier.leave()

    def _kept(self):
        return [Arrays({"params": self.params}, Combine.FRESH), self._votes]

    def finish(self):
        request = self._comm.Iallgather(np.zeros(1), np.zeros(self._comm.size))

        def all_here():
            self._meet_if_called()
            return request.Test()

        self._waiter.until(all_here)
        self._close()
        self.alarm.close()


@pytest.mark.ranks(2, 4)
def test_one_that_asks_calls_the_others_wherever_they_are(comm):
    """Worker 0 asks in its 3rd step; worker 1 has ended by then or takes a step, the others come from their waits."""
    worker, reached = Wanderer(comm), []
    worker.checkpoint.on_reached = lambda: reached.append(worker.checkpoint.step)
    for clock in range(5 if comm.rank == 0 else 1):
        if comm.rank == 0 and clock == 2:
            worker.checkpoint.ask(stop=False)
        worker.step(1, 1.0)
        if worker.checkpoint.reached:
            reached.append(worker.checkpoint.step)
    worker.finish()
    assert worker.known == [[3.0] + [1.0] * (comm.size - 1)] and reached == [3]
    assert not worker.checkpoint.stopping and worker._comm._freed


@pytest.mark.ranks(3)
def test_intervals_go_by_the_furthest(comm):
    worker, reached = Wanderer(comm), []
    worker.checkpoint.every = 4
    worker.checkpoint.on_reached = lambda: reached.append(worker.checkpoint.step)
    for _ in range(9 if comm.rank == 1 else 0):
        worker.step(1, 1.0)
        if worker.checkpoint.reached:
            reached.append(worker.checkpoint.step)
    worker.finish()
    assert reached == [4, 8] and worker.known == [[0, 4, 0], [0, 8, 0]]
