"""Text as samples: each is `context` bytes, which are its tokens, and its labels are the bytes that follow each."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.data.dataset import HELD_OUT, Dataset, Split
from psgd.kernels.errors import DataError, UsageError

CONTEXT = 128
"""Tokens of a sample, where nothing else is said."""
VOCABULARY = 256


def read(name: str, path: Path, context: int) -> Dataset:
    """Maps a file, of whatever bytes, as samples that follow each other; the last sixth is held out for testing.

    What is left over at the end is not used. Samples and labels are two views of the file, one byte apart.

    Args:
        name: of the dataset.
        path: the file.
        context: tokens of a sample.

    Returns:
        Samples and labels of shape (n, context), uint8.

    Raises:
        DataError: a file that cannot be read, or that is too short for two samples.
        UsageError: a context below 1.
    """
    if context < 1:
        raise UsageError(f"dataset {name}: expected a context of at least 1 token, got {context}")
    try:
        size = path.stat().st_size
        data: NDArray[Any] = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    samples = (len(data) - 1) // context
    if samples < 2:
        raise DataError(
            f"{path}: {len(data):,} bytes; expected at least {2 * context + 1:,}, two samples of {context} tokens and "
            "one more; use a longer text or a smaller context"
        )
    used = samples * context
    x, y = (data[first : first + used].reshape(samples, context) for first in (0, 1))
    cut = samples - -(-samples // HELD_OUT)
    where = str(path)
    train = Split(x[:cut], y[:cut], where, where)
    return Dataset(name, train, Split(x[cut:], y[cut:], where, where, cut), (context,), VOCABULARY, tokens=True)
