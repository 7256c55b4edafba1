"""What all ranks must find alike in a dataset, so that a stale or cut copy on one node is noticed at the start."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.data.dataset import Dataset

_CHUNK_BYTES = 1 << 22


def describe(dataset: Dataset, contents: bool = False) -> dict[str, Any]:
    """Sizes, shapes, classes and dtypes of both parts under names for messages, as JSON values.

    Args:
        dataset: opened.
        contents: also a checksum of all samples and labels, for which they are read.
    """
    train, test = dataset.train, dataset.test
    found: dict[str, Any] = {
        "training samples": train.samples,
        "test samples": test.samples,
        "sample shape": list(dataset.sample_shape),
        "classes": dataset.classes,
        "dtype of samples": str(train.x.dtype),
        "dtype of labels": str(train.y.dtype),
    }
    if dataset.tokens:
        found["tokens"] = True
    if contents:
        found["checksum"] = checksum(train.x, train.y, test.x, test.y)
    return found


def checksum(*arrays: NDArray[Any]) -> str:
    """Of the arrays' bytes, in their order. Reads mapped ones piece by piece."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        rows = max(1, _CHUNK_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), rows):
            found.update(np.ascontiguousarray(array[start : start + rows]).view(np.uint8).data)
    return found.hexdigest()
