"""Softmax cross-entropy: loss, count of hits and gradient in one pass over the logits."""

from typing import Any

import numpy as np

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import DataError


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
    if isinstance(logits, np.ndarray):
        from psgd.kernels import layers_host

        loss, correct = layers_host.softmax_cross_entropy(logits, labels, scale)
    else:
        loss, correct = by_array(array_module(logits), logits, labels, scale)
    if loss < 0:
        label, classes = int(labels[correct]), logits.shape[1]
        raise DataError(f"label {label} in row {correct} of the batch is not in 0..{classes - 1}")
    return loss, correct


def by_array(xp: Any, logits: Array, labels: Array, scale: float) -> tuple[float, int]:
    """The same with whole-array operations, for any array library `xp`; a bad label returns (-1, its row)."""
    rows = xp.arange(len(logits))
    within = xp.clip(labels, 0, logits.shape[1] - 1)
    wrong = labels != within
    correct = (logits.argmax(axis=1) == labels).sum()
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[rows, within]
    xp.exp(logits, out=logits)
    total = logits.sum(axis=1, keepdims=True)
    loss = (xp.log(total[:, 0]) - picked).sum(dtype=np.float64)
    logits *= scale / total
    logits[rows, within] -= scale
    figures = xp.stack([loss, correct, wrong.any(), wrong.argmax()]).tolist()  # one wait for the device
    return (-1.0, int(figures[3])) if figures[2] else (figures[0], int(figures[1]))
