"""Mean and standard deviation of the training set, and the checks that need every value.

One rank calls this and broadcasts the two numbers; the test set is normalized with the training set's.
"""

import math
from dataclasses import dataclass

import numpy as np

from psgd.data.dataset import Dataset, Split
from psgd.kernels.errors import DataError

CHUNK_VALUES = 1 << 17
"""Values looked at at once: 1 MiB in float64, which stays in the cache."""


@dataclass(frozen=True)
class Statistics:
    """Over all values of the training set.

    Attributes:
        mean: arithmetic mean.
        std: standard deviation of the population (divided by the count, not by one less).
    """

    mean: float
    std: float

    @property
    def scale(self) -> float:
        """1 / std; 1 for a constant dataset, whose values all normalize to 0."""
        return 1.0 / self.std if self.std >= np.finfo(np.float64).tiny else 1.0


AS_THEY_ARE = Statistics(0.0, 1.0)
"""Of tokens, which are numbers of things: normalizing with it changes none."""


def validate(dataset: Dataset) -> Statistics:
    """Looks at every label and every value of both parts, once, and measures the training part.

    Tokens are neither looked at, for bytes are all possible, nor measured.

    Raises:
        DataError: a label below 0 or not below `classes`, a class without a training sample, NaN, Inf, or
            values too large to measure. Names the file and the first bad sample (its row in the file).
    """
    if dataset.tokens:
        return AS_THEY_ARE
    _check_labels(dataset.train, dataset.classes)
    _check_labels(dataset.test, dataset.classes)
    _check_gaps(dataset.train)
    if dataset.test.x.dtype.kind == "f":
        for start, stop in _chunks(dataset.test):
            _check_finite(dataset.test, start, stop)
    return measure(dataset.train)


def measure(split: Split) -> Statistics:
    """Measures all values of a split in one pass of bounded memory.

    uint8 is summed exactly. Floats: each chunk's mean and squared deviations in float64, joined by the
    formula of Chan, Golub, LeVeque (1983), so that a large mean costs no digits of the deviation.

    Raises:
        DataError: NaN, Inf, or a variance beyond float64.
    """
    return _measure_bytes(split) if split.x.dtype == np.uint8 else _measure_floats(split)


def _measure_bytes(split: Split) -> Statistics:
    total = squares = 0
    # float64 sums of integers are exact below 2**53; one chunk stays below, the totals are Python integers
    for start, stop in _chunks(split):
        values = split.x[start:stop].reshape(-1).astype(np.float64)
        total += int(values.sum())
        squares += int(values @ values)
    n = split.x.size
    return Statistics(total / n, math.sqrt(n * squares - total * total) / n)


def _measure_floats(split: Split) -> Statistics:
    pivot = float(split.x.flat[0])  # deviations from it are exactly 0 in a constant dataset
    count, mean, deviation = 0, 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start, stop in _chunks(split):
            _check_finite(split, start, stop)
            values = split.x[start:stop].reshape(-1).astype(np.float64)
            values -= pivot
            chunk_mean = float(values.mean())
            values -= chunk_mean
            chunk_deviation = float(values @ values)
            delta, total = chunk_mean - mean, count + len(values)
            mean += delta * (len(values) / total)
            deviation += chunk_deviation + delta * delta * (count * len(values) / total)
            count = total
    if not math.isfinite(mean + deviation):
        raise DataError(f"{split.x_where}: values so large that their variance overflows; scale them down")
    return Statistics(pivot + mean, math.sqrt(deviation / count))


def _chunks(split: Split) -> list[tuple[int, int]]:
    rows = max(1, CHUNK_VALUES * split.samples // split.x.size)
    return [(start, min(start + rows, split.samples)) for start in range(0, split.samples, rows)]


def _check_finite(split: Split, start: int, stop: int) -> None:
    finite = np.isfinite(split.x[start:stop].reshape(stop - start, -1))
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        value = split.x[start + row].reshape(-1)[column]
        raise DataError(f"{split.x_where}: sample {split.first + start + row} holds {value}; remove or repair it")


def _check_labels(split: Split, classes: int) -> None:
    bad = (split.y < 0) | (split.y >= classes) if classes > 0 else split.y < 0
    if bad.any():
        row = int(np.argmax(bad))
        fix = "; save numpy.unique(y, return_inverse=True)[1] instead" if split.y.min() < 0 else ""
        raise DataError(
            f"{split.y_where}: label {split.y[row]} of sample {split.first + row} is out of range; expected "
            + (f"0 to {classes - 1}, the labels of the training set" if classes > 0 else "0, 1, ...")
            + fix
        )


def _check_gaps(split: Split) -> None:
    """Refuses a label above a class that never occurs: a stray value, or labels that start at 1."""
    seen = np.unique(split.y)
    gap = np.flatnonzero(seen != np.arange(len(seen), dtype=np.int64))
    if len(gap):
        label = int(seen[gap[0]])
        row = int(np.argmax(split.y == label))
        from_one = np.array_equal(seen, np.arange(1, len(seen) + 1))
        fix = "y - 1" if from_one else "numpy.unique(y, return_inverse=True)[1]"
        raise DataError(
            f"{split.y_where}: label {label} of sample {split.first + row} is out of range: "
            f"no training sample has label {gap[0]}; labels must be 0, 1, ... without gaps: save {fix} instead"
        )
