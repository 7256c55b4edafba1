"""Pipelines whose stages sleep: their bubbles, by the clock."""

import time

import numpy as np

from psgd.nn.initialize import Zeros
from psgd.nn.layer import Layer, OutputState, ParameterSpec
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.pipeline import Pipeline

FORWARD_S = 20e-3


class Sleep(Layer[OutputState]):
    """The identity, after a while; a pass has three parts, of which a backward pass in halves leaves one."""

    name = "sleep"

    def __init__(self, forward_s, input_s, weights_s):
        self.forward_s, self.input_s, self.weights_s = forward_s, input_s, weights_s

    def output_shape(self, shape):
        return shape

    def weights(self, shape):
        return (ParameterSpec("nothing", (1,), Zeros()),)

    def late(self, shape):
        return (0,)

    def allocate(self, room):
        return OutputState(room.empty(*room.shape), None)

    def forward(self, state, x, params):
        time.sleep(self.forward_s)
        state.y[: len(x)] = x
        return state.y[: len(x)]

    def backward(self, state, dy, params, grads):
        dy = self.backward_input(state, dy, params, grads)
        self.backward_weights(state, grads)
        return dy

    def backward_input(self, state, dy, params, grads):
        time.sleep(self.input_s)
        return dy

    def backward_weights(self, state, grads):
        time.sleep(self.weights_s)
        grads[0][:] = 0


def sleeping(comm, schedule, microbatches, seconds=False, steps=5):
    """Runs a pipeline whose stages sleep.

    Returns the bubble of all ranks in the quietest step, its share or how long it is, and this rank's most in-flight.
    """
    ranks = comm.Get_size()
    # Behind parameters: backward ends where there are no more of them.
    layers = sum(((Linear(3), Sleep(FORWARD_S, FORWARD_S, FORWARD_S)) for _ in range(ranks)), ())
    cuts = tuple(range(2, 2 * ranks, 2))
    with Pipeline(comm, Model(layers, (3,)), cuts, schedule, batch=microbatches, microbatches=microbatches) as pipeline:
        params = pipeline.init(0)
        pipeline.bind(params, np.empty_like(params))
        x, y = np.ones((microbatches, 3), np.float32), np.zeros(microbatches, np.int64)
        pipeline.gradient(microbatches, x, y)
        bubbles, counters = [], pipeline.counters
        for _ in range(steps):
            counters.clear()
            comm.Barrier()
            start = time.perf_counter()
            pipeline.gradient(microbatches, x, y)
            comm.Barrier()  # a rank that is done early idles until the others are, too
            whole_s = time.perf_counter() - start
            idle_s = sum(comm.allgather(whole_s - counters.compute_s)) / ranks
            bubbles.append(idle_s if seconds else idle_s / whole_s)
        return min(bubbles), counters.in_flight_max
