"""What worker 0 shows of hogwild's workers while they train, and what is put together at the end."""

import math
from collections import Counter

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.kernels.memory import counters
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.totals import Sums
from psgd.strategies.hogwild.counts import HogwildCounts
from psgd.strategies.hogwild.nodes import NodeCopies
from psgd.worker.serverless.shared_parameters import SharedParameters


@pytest.mark.ranks(1, 3)
def test_worker_0_reads_what_all_have_done(comm):
    metrics = RunMetrics(comm.size, target_accuracy=0.75)
    memory = SharedParameters(comm, np.zeros(4), tallies=True)
    nodes = NodeCopies(comm, memory, 2, Communicator)
    counts = HogwildCounts(metrics, comm.rank, memory, nodes)
    comm.Barrier()
    memory.lines.count(2 + comm.rank, 0.5)
    counts.staleness[comm.rank] += 1
    comm.Barrier()
    counts.show(math.inf, 0.25)
    if comm.rank == 0:
        total = sum(2 + k for k in range(comm.size))
        assert metrics.pushes == [1] * comm.size and metrics.loss == 0.5
        assert (metrics.samples, metrics.steps, metrics.lr) == (total, comm.size, 0.25)
    counts.report(0.25 + 0.5 * (comm.rank == 0), 1.0)
    comm.Barrier()
    assert memory.lines.totals()[3] == 1, "worker 0's target stops all"
    if comm.rank == 0:
        memory.tally += comm.size - 1  # one addition did not reach the four elements
    comm.Barrier()
    assert counts.complete(comm, 0.5, 1.5, 0.25) == comm.size and counts.lost == 4
    if comm.rank == 0:
        assert metrics.staleness == Counter(dict.fromkeys(range(comm.size), 1))
        assert metrics.waited_s == [0.5] * comm.size and metrics.computed_s == [1.5] * comm.size
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_run_that_resumes_counts_what_is_new(comm):
    metrics = RunMetrics(comm.size)
    memory = SharedParameters(comm, np.zeros(4), tallies=True)
    nodes = NodeCopies(comm, memory, 2, Communicator)
    counts = HogwildCounts(metrics, comm.rank, memory, nodes)
    memory.lines.set_line(Sums(10, 30, 15.0))
    comm.Barrier()
    counts.begin()
    comm.Barrier()
    counts.show(math.inf, 1.0)
    assert metrics.samples == 0
    comm.Barrier()
    if comm.rank == 1:
        memory.lines.count(5, 2.0)
        memory.tally += 1
    memory.lines.put(counters.DONE, 1)
    comm.Barrier()
    counts.complete(comm, 0.0, 0.0, 1.0)
    assert counts.lost == 0
    if comm.rank == 0:
        assert metrics.pushes == [10, 11] and metrics.samples == 65 and metrics.loss == 2.0
