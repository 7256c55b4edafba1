"""Softmax cross-entropy: loss, count of hits and gradient in one pass over the logits."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.errors import DataError
from psgd.kernels.jit import lazy_kernel


def softmax_cross_entropy(logits: Array, labels: Array, scale: float) -> tuple[float, int]:
    """Turns logits into `scale` x the gradient of the summed loss, in place.

    For each row z with label t: loss = log(sum(exp(z))) - z[t], gradient = softmax(z) - onehot(t). The row's
    maximum is subtracted first, so that no finite logit overflows. Does not allocate on the host; on a GPU
    it waits for the result.

    Args:
        logits: (n, classes), float32 or float64, C-contiguous; overwritten.
        labels: (n,) int64 on the same device.
        scale: 1/n gives the gradient of the mean.

    Returns:
        The summed loss (not scaled), and how many rows have their maximum at the label.

    Raises:
        DataError: a label outside 0..classes-1. The logits are then unusable.
    """
    loss, correct = loss_and_hits(logits, labels, scale)
    if loss < 0:
        label, classes = int(labels[correct]), logits.shape[1]
        raise DataError(f"label {label} in row {correct} of the batch is not in 0..{classes - 1}")
    return loss, correct


@by_device
@lazy_kernel
def loss_and_hits(logits: Array, labels: Array, scale: float) -> tuple[float, int]:
    """Does what `softmax_cross_entropy` says, but for a label out of range returns (-1, its row)."""
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
