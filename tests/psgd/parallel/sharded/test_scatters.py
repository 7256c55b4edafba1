"""Reduce-scatters of units: weighed sums in rank order, of one step and of several."""

import contextlib

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.parallel.sharded.scatters import Scatters
from psgd.parallel.sharded.slices import Slices
from psgd.parallel.sharded.unit_buffers import ArrivingParts


def gradient(rank, step, size):
    return np.sin(np.arange(size) * (rank + 1) + step).astype(np.float32)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("steps", [1, 2])
def test_sums_are_those_of_one_process(comm, steps):
    slices = Slices([range(7), range(7, 9), range(9, 50_000)], comm.size, comm.rank)
    samples = np.array([[4, 0, 2], [3, 1, 0]])[:steps]
    expected = np.zeros(slices.whole, np.float32)
    for step in range(steps):
        of_step = np.zeros(slices.whole, np.float32)
        for rank in range(comm.size):
            of_step += np.float32(samples[step, rank] / 2) * gradient(rank, step, slices.whole)
        expected += of_step
    with Communicator(comm) as wrapped:
        result = np.zeros(slices.size, np.float32)
        parts = [result[slices.place(unit)] for unit in range(3)]
        grads = np.zeros(slices.whole, np.float32)
        views = [grads[unit.start : unit.stop] for unit in slices.units]
        arriving = None if steps == 1 else ArrivingParts(wrapped, slices, grads, (0, 1, 0)).units
        scatters = Scatters(wrapped, slices, views, parts, arriving, contextlib.nullcontext)
        scatters.unit = 2
        for _ in range(2):  # the second sum begins anew
            for step in range(steps):
                grads[:] = gradient(comm.rank, step, slices.whole)
                for unit in (2, 1, 0):
                    if unit == 0:
                        scatters.wait(2)  # whose memory it takes
                    scatters.add(unit, int(samples[step, comm.rank]))
                for unit in (1, 0):
                    scatters.wait(unit)
                scatters.step()
            scatters.clear()
            own = np.concatenate([expected[part.start : part.stop] for part in slices.own])
            np.testing.assert_array_equal(result, own)
        assert scatters.nbytes == 2 * steps * (expected.nbytes - result.nbytes)
        scatters.free()
