"""A dataset out of what a user's function returns: arrays, tensors, PyTorch's datasets; PyTorch is not imported."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.data.dataset import Dataset, Split, assemble, split
from psgd.kernels.errors import DataError

FORMS = (
    "(x, y), ((x_train, y_train), (x_test, y_test)), a dataset of (sample, label), a pair of such datasets, or a "
    "psgd.data.Dataset; x and y are NumPy arrays or PyTorch tensors"
)


def dataset_of(value: object, name: str) -> Dataset:
    """Reads all of it into memory, and checks its structure as that of files.

    Without a test part, the last sixth is held out.

    Args:
        value: what the function returned.
        name: of the dataset, for messages.

    Raises:
        DataError: none of `FORMS`, or samples or labels that cannot be.
    """
    if isinstance(value, Dataset):
        return value
    try:
        if _is_dataset(value):
            return assemble(name, _part(value, name, ""))
        if isinstance(value, (tuple, list)) and len(value) == 2:
            first, second = value
            if (_is_pair(first) and _is_pair(second)) or (_is_dataset(first) and _is_dataset(second)):
                return assemble(name, _part(first, name, "_train"), _part(second, name, "_test"))
            if _is_array(first) and _is_array(second):
                return assemble(name, _part(value, name, ""))
    except DataError as error:  # what files have to be saved as, a function has to return
        raise DataError(str(error).replace("; save ", "; return ").replace(": save ", ": return ")) from None
    raise DataError(f"{name}: expected {FORMS}; got {_brief(value)}")


def _part(value: Any, name: str, suffix: str) -> Split:
    x, y = value if _is_pair(value) else _columns(value, name)
    x_where, y_where = f"{name} (x{suffix})", f"{name} (y{suffix})"
    return split(_array(x, x_where), _array(y, y_where), x_where, y_where)


def _columns(items: Any, name: str) -> tuple[Any, Any]:
    """The samples and the labels of a dataset, which is read from its first item to its last."""
    tensors = getattr(items, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2 and all(_is_array(each) for each in tensors):
        return tensors  # of a TensorDataset: no item is looked at by itself
    samples, labels = [], []
    for index in range(len(items)):
        item = items[index]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise DataError(f"{name}: item {index}: expected (sample, label), got {_brief(item)}")
        samples.append(_array(item[0], f"{name}: item {index}"))
        labels.append(_array(item[1], f"{name}: label of item {index}"))
    for index, sample in enumerate(samples):
        if (sample.shape, sample.dtype) != (samples[0].shape, samples[0].dtype):
            raise DataError(
                f"{name}: item {index}: expected a sample of shape {samples[0].shape} {samples[0].dtype}, as item 0, "
                f"got {sample.shape} {sample.dtype}"
            )
    if not samples:
        raise DataError(f"{name}: empty: it has no items")
    return np.stack(samples), np.stack([np.asarray(label) for label in labels])


def _array(value: Any, where: str) -> NDArray[Any]:
    for method in ("detach", "cpu", "numpy"):  # of a tensor
        if callable(getattr(value, method, None)):
            try:
                value = getattr(value, method)()
            except (TypeError, RuntimeError) as error:
                raise DataError(f"{where}: expected numbers that NumPy has: {error}") from None
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}: expected an array: {error}") from None
    if array.dtype.hasobject:
        raise DataError(f"{where}: expected numbers, got {_brief(value)}")
    return np.require(array, requirements="C")


def _is_array(value: Any) -> bool:
    return (hasattr(value, "shape") and hasattr(value, "dtype")) or isinstance(value, list)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(_is_array(each) for each in value)


def _is_dataset(value: Any) -> bool:
    """Whether it has items by number, as PyTorch's datasets, and is no array or plain sequence."""
    known = isinstance(value, (Sequence, dict, str)) or _is_array(value)
    return not known and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _brief(value: object) -> str:
    if isinstance(value, (tuple, list)):
        inner = ", ".join(type(each).__name__ for each in value[:6])
        return f"a {type(value).__name__} of {len(value)}: {inner}"
    return type(value).__name__
