"""Datasets of what a user's function returns: every form gives what the same arrays in a file give."""

import numpy as np
import pytest

from psgd.data import load
from psgd.data.values import dataset_of
from psgd.kernels.errors import DataError

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
X_TEST, Y_TEST = RNG.normal(size=(9, 4)).astype(np.float32), np.arange(9) % 3


class Items:
    """As a dataset of PyTorch with items by number, and no more than that."""

    def __init__(self, x, y):
        self._x, self._y = x, y

    def __len__(self):
        return len(self._y)

    def __getitem__(self, index):
        return self._x[index], self._y[index]


def same(found, wanted):
    assert (found.sample_shape, found.classes) == (wanted.sample_shape, wanted.classes)
    for part in ("train", "test"):
        ours, theirs = getattr(found, part), getattr(wanted, part)
        np.testing.assert_array_equal(ours.x, theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)
        assert (ours.x.dtype, ours.y.dtype.kind) == (theirs.x.dtype, theirs.y.dtype.kind)
        assert ours.x.flags.c_contiguous and not ours.x.flags.writeable


@pytest.mark.parametrize("form", ["arrays", "list", "fortran", "items", "tensors", "TensorDataset", "Dataset"])
def test_one_part_of_which_a_sixth_is_held_out(tmp_path, form):
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    wanted = load(tmp_path / "data.npz")
    assert wanted.test.samples == 5
    values = {"arrays": (X, Y), "list": [X, Y.tolist()], "fortran": (np.asfortranarray(X), Y), "items": Items(X, Y)}
    if form in values:
        value = values[form]
    elif form == "Dataset":
        value = wanted
    else:
        torch = pytest.importorskip("torch")
        tensors = torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)
        value = torch.utils.data.TensorDataset(*tensors) if form == "TensorDataset" else tensors
    same(dataset_of(value, "made"), wanted)


@pytest.mark.parametrize("form", ["arrays", "lists", "items"])
def test_two_parts(tmp_path, form):
    np.savez(tmp_path / "data.npz", x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    pairs = (X, Y), (X_TEST, Y_TEST)
    value = {"arrays": pairs, "lists": [list(pair) for pair in pairs], "items": tuple(Items(*pair) for pair in pairs)}
    same(dataset_of(value[form], "made"), load(tmp_path / "data.npz"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "^made: expected .*; got NoneType$"),
        ((X, Y, X_TEST, Y_TEST), "^made: expected .*; got a tuple of 4: ndarray, ndarray, ndarray, ndarray$"),
        ({"x": X, "y": Y}, "^made: expected .*; got dict$"),
        ("digits", "^made: expected .*; got str$"),
        ((X, None), "^made: expected .*; got a tuple of 2: ndarray, NoneType$"),
        ((X, Y[:, None]), r"^made \(y\): labels need shape .*; return y.reshape\(-1\) instead$"),
        ((X.astype(np.int64), Y), r"^made \(x\): samples need dtype "),
        ((X, Y + 0.5), r"^made \(y\): labels need an integer dtype"),
        ((X, Y[1:]), r"^made \(x\) holds 30 samples, but made \(y\) holds 29 labels$"),
        (((X, Y), (X_TEST[:, 1:], Y_TEST)), r"^made \(x_test\): test samples of shape \(3,\)"),
        (((X, Y), (X_TEST, Y_TEST[1:])), r"^made \(x_test\) holds 9 samples, but made \(y_test\) holds 8"),
        (([object()], [0]), r"^made \(x\): expected numbers, got a list of 1: object$"),
        (([[1, 2], [3]], [0, 1]), r"^made \(x\): expected an array"),
        (Items([X[0], X[1, 1:]], [0, 1]), r"^made: item 1: expected a sample of shape \(4,\) float32, as item 0"),
        (Items(X[:0], Y[:0]), "^made: empty: it has no items$"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(value, message):
    with pytest.raises(DataError, match=message):
        dataset_of(value, "made")


def test_items_that_are_no_pairs():
    class Single(Items):
        def __getitem__(self, index):
            return {"x": self._x[index]}

    with pytest.raises(DataError, match=r"^made: item 0: expected \(sample, label\), got dict$"):
        dataset_of(Single(X, Y), "made")


def test_numbers_that_numpy_does_not_have():
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match=r"^made \(x\): expected numbers that NumPy has: .*BFloat16"):
        dataset_of((torch.zeros(30, 4, dtype=torch.bfloat16), torch.zeros(30, dtype=torch.int64)), "made")
