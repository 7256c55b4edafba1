"""Normalization of each row to mean 0 and variance 1, with a factor and a summand for each column; and its gradient."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import lazy_kernel


@by_device
@lazy_kernel
def layer_norm(x: Array, factor: Array, summand: Array, y: Array, mean: Array, scale: Array, epsilon: float) -> None:
    """Computes y = (x - mean) * scale * factor + summand, with scale = 1 / sqrt(variance + epsilon), row by row.

    The variance is that of the population. Sums are made in eight parts, column by column.

    Args:
        x: (n, width), float32 or float64, C-contiguous.
        factor: (width,).
        summand: (width,).
        y: shape of x, overwritten.
        mean: (n,), overwritten: for backward.
        scale: (n,), overwritten: for backward.
        epsilon: above 0.
    """
    kind = x.dtype.type
    width = x.shape[1]
    whole = width - width % 8
    count = kind(width)
    for i in range(x.shape[0]):
        row = x[i]
        a = b = c = d = e = f = g = h = kind(0)
        for j in range(0, whole, 8):
            a += row[j]
            b += row[j + 1]
            c += row[j + 2]
            d += row[j + 3]
            e += row[j + 4]
            f += row[j + 5]
            g += row[j + 6]
            h += row[j + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
        for j in range(whole, width):
            total += row[j]
        middle = total / count
        a = b = c = d = e = f = g = h = kind(0)
        for j in range(0, whole, 8):
            a += (row[j] - middle) * (row[j] - middle)
            b += (row[j + 1] - middle) * (row[j + 1] - middle)
            c += (row[j + 2] - middle) * (row[j + 2] - middle)
            d += (row[j + 3] - middle) * (row[j + 3] - middle)
            e += (row[j + 4] - middle) * (row[j + 4] - middle)
            f += (row[j + 5] - middle) * (row[j + 5] - middle)
            g += (row[j + 6] - middle) * (row[j + 6] - middle)
            h += (row[j + 7] - middle) * (row[j + 7] - middle)
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
        for j in range(whole, width):
            total += (row[j] - middle) * (row[j] - middle)
        by = kind(1) / np.sqrt(total / count + kind(epsilon))
        mean[i] = middle
        scale[i] = by
        for j in range(width):
            y[i, j] = (row[j] - middle) * by * factor[j] + summand[j]


@by_device
@lazy_kernel
def layer_norm_backward(
    x: Array, dy: Array, factor: Array, mean: Array, scale: Array, dfactor: Array, dsummand: Array
) -> None:
    """Overwrites dy with the gradient for x, and the gradients for factor and summand with their sums over the rows.

    Args:
        x: as `layer_norm`.
        dy: shape of x.
        factor: as `layer_norm`.
        mean: what `layer_norm` left.
        scale: the same.
        dfactor: (width,), overwritten.
        dsummand: (width,), overwritten.
    """
    kind = x.dtype.type
    width = x.shape[1]
    whole = width - width % 4
    count = kind(width)
    dfactor[:] = kind(0)
    dsummand[:] = kind(0)
    for i in range(x.shape[0]):
        row, slope = x[i], dy[i]
        middle, by = mean[i], scale[i]
        a = b = c = d = e = f = g = h = kind(0)
        for j in range(0, whole, 4):
            p = slope[j] * factor[j]
            q = slope[j + 1] * factor[j + 1]
            r = slope[j + 2] * factor[j + 2]
            s = slope[j + 3] * factor[j + 3]
            a += p
            b += q
            c += r
            d += s
            e += p * (row[j] - middle)
            f += q * (row[j + 1] - middle)
            g += r * (row[j + 2] - middle)
            h += s * (row[j + 3] - middle)
        total, along = (a + b) + (c + d), (e + f) + (g + h)
        for j in range(whole, width):
            p = slope[j] * factor[j]
            total += p
            along += p * (row[j] - middle)
        total = total / count
        along = along * by * by / count
        for j in range(width):
            value, away = slope[j], row[j] - middle
            dsummand[j] += value
            dfactor[j] += value * away * by
            slope[j] = by * (value * factor[j] - total - away * along)
