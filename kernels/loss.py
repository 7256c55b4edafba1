"""Softmax cross-entropy: loss, count of hits and gradient in one pass over the logits."""

import numpy as np

from psgd.kernels.array import Array
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
        from psgd.kernels.device import loss as device

        loss, correct = device.softmax_cross_entropy(logits, labels, scale)
    if loss < 0:
        label, classes = int(labels[correct]), logits.shape[1]
        raise DataError(f"label {label} in row {correct} of the batch is not in 0..{classes - 1}")
    return loss, correct
