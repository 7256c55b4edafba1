"""The loop over instructions: order, times, bubbles of stages that sleep."""

import numpy as np
import pytest
from harness import HARNESS
from harness.sleeping import sleeping

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubbles_of_stages_that_sleep(comm, schedule):
    ranks = comm.Get_size()
    microbatches = 8 if ranks > 2 else 2  # a share of a third: what waking up takes is little of it
    bubble, in_flight = sleeping(comm, schedule, microbatches)
    assert bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1), rel=0.1)
    limit = microbatches if schedule == "gpipe" else min(microbatches, ranks - comm.Get_rank())
    assert in_flight == limit


EIGHT = f"""
import sys
sys.path.insert(0, {str(HARNESS.parent)!r})
from mpi4py import MPI
from harness.sleeping import sleeping
bubble, in_flight = sleeping(MPI.COMM_WORLD, sys.argv[1], 8)
assert in_flight == (8 if sys.argv[1] == "gpipe" else 8 - MPI.COMM_WORLD.rank), in_flight
if MPI.COMM_WORLD.rank == 0:
    print("bubble", bubble)
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubbles_of_eight_stages(job, schedule):
    result = job(8, EIGHT.replace("sys.argv[1]", repr(schedule)), timeout=100)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.split()[1]) == pytest.approx(7 / 15, rel=0.1)


@pytest.mark.ranks(4)
def test_zero_bubble_waits_far_less_than_1f1b(comm):
    """As many microbatches as ranks, F as long as X and W: a third of 1F1B's bubble, in seconds."""
    fused, in_flight = sleeping(comm, "1f1b", 4, seconds=True)
    halved, in_flight_too = sleeping(comm, "zero-bubble", 4, seconds=True)
    assert 0 < halved <= 0.4 * fused
    assert in_flight == 4 - comm.Get_rank() and in_flight_too <= 4


@pytest.mark.ranks(3)
def test_an_observer_sees_each_instruction_once_in_order(comm):
    model = Model((Linear(3), Linear(4), Linear(2)), (3,))
    with Pipeline(comm, model, (1, 2), "gpipe", batch=6, microbatches=3) as pipeline:
        params = pipeline.init(0)
        pipeline.bind(params, np.empty_like(params))
        seen = []
        pipeline.executor.observer = lambda *event: seen.append(event)
        pipeline.gradient(6, np.ones((6, 3), np.float32), np.zeros(6, np.int64))
    assert tuple(each for each, _, _ in seen) == catalog.make("gpipe", 3, 3).programs[comm.Get_rank()]
    times = [moment for _, start, stop in seen for moment in (start, stop)]
    assert times == sorted(times)
