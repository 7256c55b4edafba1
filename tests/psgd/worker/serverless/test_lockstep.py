"""A worker that keeps pace, made of the common part alone: rounds, checkpoints, resuming and the end."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.checkpoint.declared import Arrays, Combine, Fact
from psgd.collectives import Communicator
from psgd.metrics.run_metrics import RunMetrics
from psgd.worker.context import RunContext
from psgd.worker.serverless.lockstep import LockstepWorker


class Summing(LockstepWorker):
    """Every step adds the samples of all workers to the parameters; `extra` is alike on all workers too."""

    def __init__(self, comm, start=1.0):
        params = np.full(3, start if comm.rank == 0 else np.nan)
        mesh = SimpleNamespace(worker=comm, workers=comm.size, index=comm.rank)
        context = RunContext(mesh, params, None, RunMetrics(comm.size), None, None, Communicator)
        super().__init__(context, context.collectives(context.workers), np.zeros(3))
        self.extra, self.samples = np.zeros(2), 0

    def _take_step(self, samples, loss):
        self._rounds.note(samples, loss)
        self._round(done=False)

    def _round(self, done):
        total = self._rounds.exchange(done=done)
        self.stop = self._rounds.stop
        if total:
            self.params += total
            self.extra += 1
            self.version, self.samples = self.version + 1, self.samples + total
        self._votes.decide(self._rounds.request, self.version)

    def _kept(self):
        alike = Arrays({"params": self.params, "extra": self.extra}, Combine.ALIKE)
        return [alike, Fact("version", self), Fact("samples", self), self._votes]


@pytest.mark.ranks(1, 3)
def test_who_is_done_keeps_pace_and_stands_at_checkpoints(comm):
    """Worker k takes 5 + k steps of k + 1 samples."""
    worker, reached = Summing(comm), []
    worker.checkpoint.every = 3
    worker.checkpoint.on_reached = lambda: reached.append(worker.checkpoint.step)
    worker.start()
    for _ in range(5 + comm.rank):
        worker.step(comm.rank + 1, 1.0)
        if worker.checkpoint.reached:
            reached.append(worker.checkpoint.step)
    assert worker.version == 5 + comm.rank
    worker.finish()
    total = sum((5 + k) * (k + 1) for k in range(comm.size))
    assert worker.params.tolist() == [1.0 + total] * 3 and worker.samples == total
    assert worker.version == 4 + comm.size and reached == [3, 6][: 1 + (comm.size > 1)]
    assert worker.bytes_sent == worker.bytes_received and (worker.bytes_sent > 0) == (comm.size > 1)
    assert worker._comm._freed
    if comm.rank == 0:
        assert worker._metrics.pushes == [5 + k for k in range(comm.size)]


@pytest.mark.ranks(3)
def test_a_stop_and_a_report_reach_worker_0_and_all(comm):
    worker = Summing(comm)
    worker.start()
    worker.report(0.25 * comm.rank, 1.0)
    worker.checkpoint.ask(stop=comm.rank == 2)
    worker.step(1, 1.0)
    assert worker.stop and worker.checkpoint.reached and worker.checkpoint.stopping
    if comm.rank == 0:
        assert worker._metrics.accuracy == 0.5
    worker.finish()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("same", [True, False])
def test_what_is_alike_reaches_all_where_a_run_resumes(comm, same):
    worker = Summing(comm)
    worker.start()
    for _ in range(2):
        worker.step(1, 1.0)
    state = worker.state()
    assert sorted(state.tensors) == (["extra", "params"] if comm.rank == 0 else [])
    states = comm.allgather(state)
    worker.finish()
    again = Summing(comm, np.nan)
    assert again.restore(state if same else None, states) == []
    again.start()
    assert (again.params.tolist(), again.extra.tolist()) == ([7] * 3, [2, 2])
    assert (again.version, again.samples) == (2, 6)
    again.finish()
