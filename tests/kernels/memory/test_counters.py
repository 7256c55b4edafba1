import numpy as np
import pytest

from psgd.collectives.mpi.node import address_of
from psgd.kernels.memory import counters as kernels


def test_lines():
    """Counters of two workers in cache lines of their own; other words stay."""
    memory = np.full(8 * 5, -1, np.int64)
    offset = -address_of(memory) % 64 // 8
    lines = memory[offset : offset + 16].reshape(2, 8)
    lines[:] = 0
    at, untouched = address_of(lines), memory.copy()
    assert at % 64 == 0
    kernels.count(at, 1, 10, 0.5)
    kernels.count(at, 1, 2, 0.25)
    kernels.count(at, 0, 100, -1.0)
    kernels.put(at, 0, kernels.FAR_STEPS, 1000)
    kernels.put(at, 0, kernels.FAR_SAMPLES, 5000)
    assert kernels.totals(at, 2) == (1003, 5112, 0, 0)
    kernels.put(at, 1, kernels.DONE, 1)
    kernels.put(at, 0, kernels.STOP, 1)
    assert kernels.totals(at, 2) == (1003, 5112, 1, 1)
    assert kernels.totals(at, 1) == (1001, 5100, 0, 1)
    assert lines.view(np.float64)[:, kernels.LOSS].tolist() == [-100.0, 5.5]
    lines[:] = 0
    np.testing.assert_array_equal(memory, untouched)


@pytest.mark.parametrize("n", [0, 1, 7, 63, 64, 65, 1023])
def test_add_one(n):
    values = np.arange(n + 2, dtype=np.int32)
    assert kernels.add_one(values[1:-1], np.full(n, -0.5)) == n
    assert values.tolist() == [0, *range(2, n + 2), n + 1]
    grad = np.where(np.arange(n) % 3, 0.0, 1.0)
    assert kernels.add_one(values[1:-1], grad) == np.count_nonzero(grad)
    assert values.tolist() == [0, *(k + 2 + (k % 3 == 0) for k in range(n)), n + 1]
