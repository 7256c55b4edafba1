"""The loop over instructions: order, times, bubbles of stages that sleep."""

import time

import numpy as np
import pytest

from psgd.nn.layer import Layer, OutputState
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog


class Sleep(Layer[OutputState]):
    """The identity, after a while."""

    name = "sleep"

    def __init__(self, forward_s, backward_s):
        self.forward_s, self.backward_s = forward_s, backward_s

    def output_shape(self, shape):
        return shape

    def allocate(self, room):
        return OutputState(room.empty(*room.shape), None)

    def forward(self, state, x, params):
        time.sleep(self.forward_s)
        state.y[: len(x)] = x
        return state.y[: len(x)]

    def backward(self, state, dy, params, grads):
        time.sleep(self.backward_s)
        return dy


def sleeping(comm, schedule, microbatches, forward_s=15e-3, backward_s=30e-3, steps=3):
    """Runs a pipeline whose stages sleep; returns the bubble of all ranks in the quietest step, and in-flight."""
    ranks = comm.Get_size()
    # Behind parameters: backward ends where there are no more of them.
    layers = sum(((Linear(3), Sleep(forward_s, backward_s)) for _ in range(ranks)), ())
    cuts = tuple(range(2, 2 * ranks, 2))
    with Pipeline(comm, Model(layers, (3,)), cuts, schedule, batch=microbatches, microbatches=microbatches) as pipeline:
        params = pipeline.init(0)
        pipeline.bind(params, np.empty_like(params))
        x, y = np.ones((microbatches, 3), np.float32), np.zeros(microbatches, np.int64)
        pipeline.gradient(microbatches, x, y)
        shares, counters = [], pipeline.counters
        for _ in range(steps):
            counters.clear()
            comm.Barrier()
            start = time.perf_counter()
            pipeline.gradient(microbatches, x, y)
            comm.Barrier()  # a rank that is done early idles until the others are, too
            whole_s = time.perf_counter() - start
            shares.append(1 - sum(comm.allgather(counters.compute_s / whole_s)) / ranks)
        return min(shares), counters.in_flight_max


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubbles_of_stages_that_sleep(comm, schedule):
    ranks, microbatches = comm.Get_size(), 8
    bubble, in_flight = sleeping(comm, schedule, microbatches)
    assert bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1), rel=0.1)
    limit = microbatches if schedule == "gpipe" else min(microbatches, ranks - comm.Get_rank())
    assert in_flight == limit


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
