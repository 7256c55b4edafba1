"""A dataset in memory or mapped: a training and a test part, their structure checked, their values not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.errors import DataError

SAMPLE_DTYPES = ("uint8", "float32", "float64")
CHANNELS, SMALLEST_IMAGE, MOST_CHANNELS = (1, 2, 3, 4), 8, 16
"""Images of so many channels are taken for channels last, where the two dimensions before are no shorter than that; so
are square ones of up to 16 channels that are no more than half as many as the pixels of a side."""
HELD_OUT = 6
"""Without a test part, the last sixth of the samples (rounded up) is held out for testing."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and labels.

    Attributes:
        x: shape `(n, *sample_shape)`, uint8, float32 or float64, C-contiguous and read-only. A memory map where
            the file allows it (plain IDX, `.npy`).
        y: shape (n,), any native integer dtype, read-only; of text (n, tokens), the token after each one of x.
        x_where: the file (and array) that x comes from, for messages.
        y_where: the same for y.
        first: row of the file that is row 0 here.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    x_where: str
    y_where: str
    first: int = 0

    @property
    def samples(self) -> int:
        """Number of samples n."""
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """What `psgd.data.load` returns.

    Attributes:
        name: as it was asked for.
        train: the training part.
        test: the test part, same sample shape and dtype.
        sample_shape: (channels, height, width) for images, (d,) for flat samples.
        classes: labels are 0 to classes - 1; 1 + the largest training label unless known.
        tokens: samples are numbers of tokens below `classes`, each with a label; they are not normalized.
    """

    name: str
    train: Split
    test: Split
    sample_shape: tuple[int, ...]
    classes: int
    tokens: bool = False


def split(x: NDArray[Any], y: NDArray[Any], x_where: str, y_where: str) -> Split:
    """Pairs samples with labels.

    Args:
        x: (n, d), (n, height, width) or (n, channels, height, width).
        y: (n,).
        x_where: where x comes from, for messages.
        y_where: where y comes from.

    Raises:
        DataError: another number of dimensions, another dtype, empty, or counts that differ.
    """
    if x.ndim == 1 and y.ndim > 1 and len(x) == len(y):
        raise DataError(f"{x_where}: samples of shape {x.shape} and labels of shape {y.shape}; are x and y swapped?")
    if not 2 <= x.ndim <= 4:
        fix = "x.reshape(-1, 1)" if x.ndim == 1 else "x.reshape(len(x), -1)"
        raise DataError(
            f"{x_where}: samples need shape (n, d), (n, height, width) or (n, channels, height, width), got {x.shape}; "
            f"save {fix} instead"
        )
    if _has_channels_last(x.shape):
        raise DataError(
            f"{x_where}: samples need shape (n, channels, height, width), got {x.shape}, where the channels are last; "
            "save x.transpose(0, 3, 1, 2) instead"
        )
    if str(x.dtype) not in SAMPLE_DTYPES:
        raise DataError(
            f"{x_where}: samples need dtype {', '.join(SAMPLE_DTYPES)} in native byte order, got {x.dtype}; "
            f"convert them, as with x.astype('float32')"
        )
    if y.ndim != 1:
        raise DataError(
            f"{y_where}: labels need shape (n,), one class number for each sample, got {y.shape}; "
            f"{_fix_shape(y, len(x))}"
        )
    if y.dtype.kind not in "iu" or not y.dtype.isnative:
        raise DataError(f"{y_where}: labels need an integer dtype in native byte order, got {y.dtype}; {_fix_type(y)}")
    if len(x) != len(y):
        last = x.ndim > 1 and x.shape[-1] == len(y)
        fix = f"; in shape {x.shape} the samples are last: save numpy.moveaxis(x, -1, 0) instead" if last else ""
        raise DataError(f"{x_where} holds {len(x)} samples, but {y_where} holds {len(y)} labels{fix}")
    if x.size == 0:
        raise DataError(f"{x_where}: empty: shape {x.shape}")
    if x.ndim == 3:
        x = x.reshape(len(x), 1, *x.shape[1:])
    return Split(_read_only(x), _read_only(y), x_where, y_where)


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    if len(shape) != 4 or min(shape[1:3]) < SMALLEST_IMAGE:
        return False
    square = shape[1] == shape[2] and shape[3] <= min(MOST_CHANNELS, shape[1] // 2)
    return shape[3] in CHANNELS or square


def _fix_shape(y: NDArray[Any], samples: int) -> str:
    """What makes labels of another shape one number a sample, where that can be told."""
    if y.ndim and y.size == samples:
        return "save y.reshape(-1) instead"
    if y.ndim == 2 and len(y) == samples:
        return "save y.argmax(1), if they are one-hot, instead"
    if y.ndim == 2 and y.shape[1] == samples:
        return "save y.argmax(0), if they are one-hot, instead"
    return f"there are {samples} samples"


def _fix_type(y: NDArray[Any]) -> str:
    """What makes labels of another type whole numbers without changing any."""
    if y.dtype.kind == "f":
        whole = np.isfinite(y) & (y == np.floor(y))
        if not whole.all():
            row = int(np.argmin(whole))
            return f"label {y[row]} of sample {row} is no class; psgd trains classifiers, whose labels are 0, 1, ..."
    fix = "y.astype('int64')" if y.dtype.kind in "biuf" else "numpy.unique(y, return_inverse=True)[1]"
    return f"convert them, as with {fix}"


def assemble(name: str, train: Split, test: Split | None = None, classes: int | None = None) -> Dataset:
    """Joins the parts; without a test part the last sixth of `train` is held out, as views.

    Raises:
        DataError: parts of different sample shape or dtype; or nothing can be held out: a single sample, or
            labels in sorted order, whose tail would test one class only.
    """
    if test is None:
        train, test = _hold_out(train)
    if (train.x.shape[1:], train.x.dtype) != (test.x.shape[1:], test.x.dtype):
        raise DataError(
            f"{test.x_where}: test samples of shape {test.x.shape[1:]} {test.x.dtype}, but {train.x_where} "
            f"has training samples of shape {train.x.shape[1:]} {train.x.dtype}"
        )
    if classes is None:
        classes = int(train.y.max()) + 1
    return Dataset(name, train, test, train.x.shape[1:], classes)


def _hold_out(whole: Split) -> tuple[Split, Split]:
    n = whole.samples
    if n < 2:
        raise DataError(f"{whole.x_where}: a single sample leaves none for testing; give a test part")
    if whole.y[0] != whole.y[-1] and (np.all(whole.y[:-1] <= whole.y[1:]) or np.all(whole.y[:-1] >= whole.y[1:])):
        raise DataError(
            f"{whole.y_where}: labels are sorted, so that the last sixth, which is held out for testing, "
            f"would miss classes; shuffle the samples or give x_test and y_test"
        )
    cut = n - -(-n // HELD_OUT)
    train = Split(whole.x[:cut], whole.y[:cut], whole.x_where, whole.y_where)
    return train, Split(whole.x[cut:], whole.y[cut:], whole.x_where, whole.y_where, cut)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view: NDArray[Any] = array.view()
    view.flags.writeable = False
    return view
