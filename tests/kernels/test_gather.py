"""Rows gathered and normalized, against NumPy, on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.gather import gather, normalize

ROWS = np.array([4, 0, 4, 2])


def arrays(source, out):
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (5, 67)).astype(source)
    statistics = np.array([3.5, 0.25], np.float32 if (source, out) == (np.uint8, np.float32) else np.float64)
    return x, np.arange(5) + 10, statistics, np.full((6, 67), np.nan, out), np.full(6, -1, np.int64)


def expected(x, statistics, out):
    return ((x[ROWS].astype(statistics.dtype) - statistics[0]) * statistics[1]).astype(out)


@pytest.mark.parametrize("source", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("out", [np.float32, np.float64])
def test_rows(source, out):
    x, y, statistics, x_out, y_out = arrays(source, out)
    assert gather(x, y, ROWS, statistics, x_out, y_out)[0] == -1
    np.testing.assert_array_equal(x_out[:4], expected(x, statistics, out))
    assert np.isnan(x_out[4:]).all()
    assert y_out.tolist() == [14, 10, 14, 12, -1, -1]
    flat = np.empty(x.size, out)
    normalize(x.reshape(-1), statistics, flat)
    np.testing.assert_array_equal(flat.reshape(x.shape)[ROWS], x_out[:4])


@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_out_of_range_writes_nothing(row):
    x, y, statistics, x_out, y_out = arrays(np.uint8, np.float32)
    assert gather(x, y, np.array([1, row]), statistics, x_out, y_out)[0] == 1
    assert np.isnan(x_out).all() and (y_out == -1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("source", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("out", [np.float32, np.float64])
def test_gpu_has_the_hosts_bits(source, out):
    xp = cupy()
    from psgd.kernels.device.gather import gather as on_device

    x, y, statistics, _, _ = arrays(source, out)
    x_out, y_out = xp.full((4, 67), np.nan, out), xp.full(4, -1, np.int64)
    on_device(xp.asarray(x), xp.asarray(y), xp.asarray(ROWS), statistics, x_out, y_out)
    np.testing.assert_array_equal(x_out.get(), expected(x, statistics, out))
    assert y_out.tolist() == [14, 10, 14, 12]
    labels = np.arange(3 * len(x)).reshape(-1, 3)
    tokens = xp.full((4, 3), -1, np.int64)
    on_device(xp.asarray(x), xp.asarray(labels), xp.asarray(ROWS), statistics, x_out, tokens)
    np.testing.assert_array_equal(tokens.get(), labels[ROWS])
