"""The layers' loops that Numba runs faster on the host than NumPy does. Import it only where it is needed.

All arrays are C-contiguous. Flat unsigned indices let the compiler vectorize: no index can be negative.
"""

import numpy as np
import numpy.typing as npt

from psgd.kernels.jit import kernel


@kernel
def softmax_cross_entropy(
    logits: npt.NDArray[np.floating], labels: npt.NDArray[np.int64], scale: float
) -> tuple[float, int]:
    """See `psgd.kernels.loss.softmax_cross_entropy`; a label out of range returns (-1, its row)."""
    rows, classes = logits.shape
    loss = 0.0
    correct = 0
    for i in range(rows):
        label = labels[i]
        if label < 0 or label >= classes:
            return -1.0, i
        best = 0
        for j in range(1, classes):
            if logits[i, j] > logits[i, best]:
                best = j
        top = logits[i, best]
        picked = logits[i, label] - top
        total = 0.0
        for j in range(classes):
            power = np.exp(logits[i, j] - top)
            logits[i, j] = power
            total += power
        factor = scale / total
        for j in range(classes):
            logits[i, j] *= factor
        logits[i, label] -= scale
        loss += np.log(total) - picked
        correct += best == label
    return loss, correct


@kernel
def add_bias(y: npt.NDArray[np.floating], bias: npt.NDArray[np.floating]) -> None:
    """See `psgd.kernels.activation.add_bias`."""
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] += bias[j]


@kernel
def bias_relu(y: npt.NDArray[np.floating], bias: npt.NDArray[np.floating]) -> None:
    """See `psgd.kernels.activation.bias_relu`."""
    zero = y.dtype.type(0)
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            value = y[i, j] + bias[j]
            y[i, j] = zero if value < zero else value  # NaN stays


@kernel
def bias_relu_backward(
    y: npt.NDArray[np.floating], dy: npt.NDArray[np.floating], dbias: npt.NDArray[np.floating]
) -> None:
    """See `psgd.kernels.activation.bias_relu_backward`."""
    zero = y.dtype.type(0)
    dbias[:] = zero
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            value = dy[i, j] if y[i, j] > zero else zero
            dy[i, j] = value
            dbias[j] += value


@kernel
def unfold(
    x: npt.NDArray[np.floating],
    columns: npt.NDArray[np.floating],
    windows: tuple[int, int, int, int],
    steps: tuple[int, int, int, int],
    run: int,
) -> None:
    """Copies each window's rows of `run` elements one after another into `columns` (both flat).

    `windows` counts (samples, down, across, rows of a window); `steps` are the elements of x from one sample,
    one window down, one window across and one row to the next.
    """
    sample, down, across, row = steps
    length = np.uint64(run)
    to = np.uint64(0)
    for n in range(windows[0]):
        for i in range(windows[1]):
            for j in range(windows[2]):
                for u in range(windows[3]):
                    start = np.uint64(n * sample + i * down + j * across + u * row)
                    for q in range(length):
                        columns[to + q] = x[start + q]
                    to += length


@kernel
def fold(
    columns: npt.NDArray[np.floating],
    x: npt.NDArray[np.floating],
    windows: tuple[int, int, int, int],
    steps: tuple[int, int, int, int],
    run: int,
) -> None:
    """The adjoint of `unfold`: x = the sum of all columns' elements at the places they were copied from."""
    sample, down, across, row = steps
    length = np.uint64(run)
    at = np.uint64(0)
    x[:] = 0
    for n in range(windows[0]):
        for i in range(windows[1]):
            for j in range(windows[2]):
                for u in range(windows[3]):
                    start = np.uint64(n * sample + i * down + j * across + u * row)
                    for q in range(length):
                        x[start + q] += columns[at + q]
                    at += length


@kernel
def max_pool(
    x: npt.NDArray[np.floating], y: npt.NDArray[np.floating], winner: npt.NDArray[np.uint8], size: int
) -> None:
    """See `psgd.kernels.pooling.max_pool`."""
    samples, height, width, channels = y.shape
    for n in range(samples):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    y[n, i, j, c] = x[n, i * size, j * size, c]
                    winner[n, i, j, c] = 0
                for u in range(size):
                    for v in range(size):
                        for c in range(channels):
                            value = x[n, i * size + u, j * size + v, c]
                            if value > y[n, i, j, c]:
                                y[n, i, j, c] = value
                                winner[n, i, j, c] = u * size + v


@kernel
def max_pool_backward(
    dy: npt.NDArray[np.floating], winner: npt.NDArray[np.uint8], dx: npt.NDArray[np.floating], size: int
) -> None:
    """See `psgd.kernels.pooling.max_pool_backward`."""
    samples, height, width, channels = dy.shape
    for n in range(samples):
        for i in range(height):
            for j in range(width):
                for u in range(size):
                    for v in range(size):
                        for c in range(channels):
                            value = dy[n, i, j, c]
                            if winner[n, i, j, c] != u * size + v:
                                value = dy.dtype.type(0)
                            dx[n, i * size + u, j * size + v, c] = value
