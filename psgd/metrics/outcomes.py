"""Precision, recall and F1 of a classifier, from how often each class was right, predicted and meant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.array import Array, array_module


class Outcomes:
    """Counts by class: labels, predictions, and predictions that are right.

    Attributes:
        counts: (3, classes so far) of them, in this order.
    """

    def __init__(self, counts: Any = ((), (), ())) -> None:
        self.counts: NDArray[np.int64] = np.array(counts, np.int64).reshape(3, -1)

    def add(self, labels: Array, predicted: Array) -> None:
        """Counts these samples: whole numbers of at least 0, of any shape, both on one device."""
        xp = array_module(labels)
        labels, predicted = labels.reshape(-1), predicted.reshape(-1)
        if len(labels):
            size = int(max(labels.max(), predicted.max())) + 1
            parts = (labels, predicted, labels[labels == predicted])
            self.merge(np.array([xp.bincount(part, minlength=size).tolist() for part in parts], np.int64))

    def merge(self, counts: Any) -> None:
        """Adds other counts: (3, any number of classes)."""
        more = np.array(counts, np.int64).reshape(3, -1)
        wide = max(more.shape[1], self.counts.shape[1])
        ours, theirs = (np.pad(each, ((0, 0), (0, wide - each.shape[1]))) for each in (self.counts, more))
        self.counts = ours + theirs

    def means(self) -> dict[str, float]:
        """Precision, recall and F1, each the mean over the classes that are some sample's label or prediction.

        Where a class is never predicted its precision is 0, where it is no label its recall. Empty without samples.
        """
        meant, predicted, right = self.counts[:, self.counts[:2].any(axis=0)]
        if not len(right):
            return {}
        each = {
            "precision": right / np.maximum(predicted, 1),
            "recall": right / np.maximum(meant, 1),
            "f1": 2 * right / (meant + predicted),
        }
        return {name: float(values.mean()) for name, values in each.items()}
