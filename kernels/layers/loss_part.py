"""Softmax cross-entropy of logits of which each rank has a range of the classes: what to exchange, and what follows."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import lazy_kernel

TOP, SUM, PICKED, PLACE, FACTS = range(5)
"""Of a row: its largest logit, the sum of exp(z - that), the logit of the label or 0, the class of the largest."""


@by_device
@lazy_kernel
def part_facts(logits: Array, labels: Array, first: int, classes: int, facts: Array) -> int:
    """Turns logits into exp(z - the largest of the row's part), and says what other ranks need of them.

    Args:
        logits: (n, at least 1), float32 or float64, C-contiguous: the classes from `first` on.
        labels: (n,) int64, of all classes.
        first: class of the first column.
        classes: number of all.
        facts: (FACTS, n) float64, overwritten.

    Returns:
        The first row whose label is not a class, or -1.
    """
    for i in range(logits.shape[0]):
        label = labels[i]
        if label < 0 or label >= classes:
            return i
        best = 0
        for j in range(1, logits.shape[1]):
            if logits[i, j] > logits[i, best]:
                best = j
        top = logits[i, best]
        label -= first
        facts[TOP, i] = top
        facts[PICKED, i] = logits[i, label] if 0 <= label < logits.shape[1] else 0.0
        facts[PLACE, i] = first + best
        total = 0.0
        for j in range(logits.shape[1]):
            power = np.exp(logits[i, j] - top)
            logits[i, j] = power
            total += power
        facts[SUM, i] = total
    return -1


@by_device
@lazy_kernel
def part_gradient(
    logits: Array, labels: Array, first: int, scale: float, everyones: Array, rank: int
) -> tuple[float, int]:
    """Turns what `part_facts` left into `scale` x the gradient of the summed loss. Sums are in rank order.

    Args:
        logits: as `part_facts` left them.
        labels: as there.
        first: as there.
        scale: 1/n gives the gradient of the mean.
        everyones: (ranks, FACTS, n): all ranks' facts, in the order of their classes.
        rank: whose part the logits are.

    Returns:
        The summed loss of whole rows, and how many have their maximum at the label: the same bits on all ranks.
    """
    ranks = everyones.shape[0]
    loss = 0.0
    correct = 0
    for i in range(logits.shape[0]):
        best = 0
        for r in range(1, ranks):
            if everyones[r, TOP, i] > everyones[best, TOP, i]:
                best = r
        top = everyones[best, TOP, i]
        total = 0.0
        picked = 0.0
        for r in range(ranks):
            total += everyones[r, SUM, i] * np.exp(everyones[r, TOP, i] - top)
            picked += everyones[r, PICKED, i]
        factor = logits.dtype.type(scale * np.exp(everyones[rank, TOP, i] - top) / total)
        for j in range(logits.shape[1]):
            logits[i, j] *= factor
        label = labels[i]
        if first <= label < first + logits.shape[1]:
            logits[i, label - first] -= logits.dtype.type(scale)
        loss += np.log(total) - (picked - top)
        correct += everyones[best, PLACE, i] == label
    return loss, correct
