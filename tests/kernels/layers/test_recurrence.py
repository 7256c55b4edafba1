"""One step of an LSTM against NumPy, and its gradient against finite differences, on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import recurrence

STEPS, N, UNITS, T = 3, 5, 7, 1


def make(dtype=np.float64):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    return draw(STEPS, N, 4 * UNITS), draw(N, 4 * UNITS), draw(STEPS + 1, N, UNITS), draw(STEPS + 1, N, UNITS)


def expected(gates, recurrent, cells):
    """Gates, c' and h' of step T."""
    i, f, g, o = np.split(gates[T].astype(np.float64) + recurrent, 4, axis=1)
    i, f, g, o = 1 / (1 + np.exp(-i)), 1 / (1 + np.exp(-f)), np.tanh(g), 1 / (1 + np.exp(-o))
    c = f * cells[T] + i * g
    return np.concatenate([i, f, g, o], axis=1), c, o * np.tanh(c)


@pytest.mark.parametrize("form", [recurrence.step_forward, on_gpu(recurrence.step_forward)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_forward_writes_its_own_step_alone(form, dtype):
    gates, recurrent, cells, hidden = make(dtype)
    before = gates.copy(), cells.copy(), hidden.copy()
    wanted = expected(gates, recurrent, cells)
    form(gates, recurrent, cells, hidden, T)
    close = 1e-6 if dtype == np.float32 else 1e-14
    rows = (gates, T), (cells, T + 1), (hidden, T + 1)
    for (array, row), old, values in zip(rows, before, wanted, strict=True):
        np.testing.assert_allclose(array[row], values, rtol=close, atol=close)
        np.testing.assert_array_equal(np.delete(array, row, 0), np.delete(old, row, 0))


@pytest.mark.parametrize("form", [recurrence.step_backward, on_gpu(recurrence.step_backward)])
def test_backward_is_the_slope_of_forward(form):
    gates, recurrent, cells, hidden = make()
    rng = np.random.default_rng(1)
    dhidden, dcells = rng.standard_normal((2, N, UNITS))

    def value():
        _, c, h = expected(gates, recurrent, cells)
        return (c * dcells + h * dhidden).sum(axis=1)  # of each sample

    slopes = {}
    for name, array in (("sums", recurrent), ("cells", cells[T])):
        slopes[name] = np.empty_like(array)
        for j in range(array.shape[1]):
            kept = array[:, j].copy()
            array[:, j] = kept + 1e-6
            above = value()
            array[:, j] = kept - 1e-6
            slopes[name][:, j] = (above - value()) / 2e-6
            array[:, j] = kept
    recurrence.step_forward(gates, recurrent, cells, hidden, T)
    form(gates, cells, dhidden, dcells, T)
    np.testing.assert_allclose(gates[T], slopes["sums"], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dcells, slopes["cells"], rtol=1e-6, atol=1e-8)
