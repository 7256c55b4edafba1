"""Pairs of samples and labels: structure, and what is held out."""

import numpy as np
import pytest

from psgd import DataError
from psgd.data.dataset import assemble, split

Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


def pair(x=None, y=Y):
    return split(np.zeros((13, 4), np.float32) if x is None else x, y, "X", "Y")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((13, 4), (4,)), ((13, 5, 3), (1, 5, 3)), ((13, 2, 5, 3), (2, 5, 3))],
)
def test_sample_shapes(shape, expected):
    data = assemble("d", pair(np.zeros(shape, np.uint8)))
    assert data.sample_shape == expected
    assert data.train.x.shape[1:] == data.test.x.shape[1:] == expected
    assert data.classes == 3


def test_the_last_sixth_is_held_out_as_views():
    x = np.arange(52, dtype=np.float64).reshape(13, 4)
    data = assemble("d", pair(x))
    assert (data.train.samples, data.test.samples) == (10, 3)
    np.testing.assert_array_equal(np.concatenate([data.train.x, data.test.x]), x)
    np.testing.assert_array_equal(np.concatenate([data.train.y, data.test.y]), Y)
    assert np.shares_memory(data.test.x, x)
    assert (data.train.first, data.test.first) == (0, 10)


def test_parts_are_read_only_and_the_callers_array_is_not():
    x = np.zeros((13, 4), np.float32)
    part = pair(x)
    with pytest.raises(ValueError, match="read-only"):
        part.x[0, 0] = 1
    x[0, 0] = 1


def test_known_classes_win():
    assert assemble("d", pair(), pair(), classes=10).classes == 10


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(13, np.uint8), Y, r"^X: samples need shape .* got \(13,\)"),
        (np.zeros((13, 1, 1, 1, 1), np.uint8), Y, "^X: samples need shape"),
        (np.zeros((13, 4), np.int64), Y, "^X: samples need dtype uint8, float32, float64 .* got int64"),
        (np.zeros((13, 4), ">f4"), Y, "^X: samples need dtype .* got >f4"),
        (np.zeros((13, 4), np.float32), Y.reshape(13, 1), "^Y: labels need shape"),
        (np.zeros((13, 4), np.float32), np.eye(13), "^Y: labels need shape"),
        (np.zeros((13, 4), np.float32), Y + 0.5, "^Y: labels need an integer dtype .* got float64"),
        (np.zeros((13, 4), np.float32), Y.astype(bool), "^Y: labels need an integer dtype"),
        (np.zeros((13, 4), np.float32), Y.astype(">i4"), "^Y: labels need an integer dtype"),
        (np.zeros((12, 4), np.float32), Y, "^X holds 12 samples, but Y holds 13 labels"),
        (np.zeros((0, 4), np.float32), Y[:0], "^X: empty"),
        (np.zeros((13, 0), np.float32), Y, "^X: empty"),
    ],
)
def test_wrong_structure_is_named(x, y, message):
    with pytest.raises(DataError, match=message):
        split(x, y, "X", "Y")


def test_parts_that_differ():
    with pytest.raises(DataError, match=r"test samples of shape \(5,\) float32, but X has .* \(4,\)"):
        assemble("d", pair(), pair(np.zeros((13, 5), np.float32)))
    with pytest.raises(DataError, match="uint8, but X has training samples"):
        assemble("d", pair(), pair(np.zeros((13, 4), np.uint8)))


@pytest.mark.parametrize("y", [np.sort(Y), np.sort(Y)[::-1]])
def test_sorted_labels_cannot_be_held_out(y):
    with pytest.raises(DataError, match=r"^Y: labels are sorted"):
        assemble("d", pair(y=y))
    assemble("d", pair(y=y), pair())


def test_a_single_sample_cannot_be_held_out():
    with pytest.raises(DataError, match="single sample"):
        assemble("d", split(np.zeros((1, 4), np.uint8), Y[:1], "X", "Y"))


@pytest.mark.parametrize(
    ("x", "y", "found", "fix"),
    [
        (np.zeros((13, 4)), Y.reshape(13, 1), "got (13, 1)", "y.reshape(-1)"),
        (np.zeros((13, 4)), np.eye(3)[Y], "got (13, 3)", "y.argmax(1)"),
        (np.zeros((13, 4)), np.eye(3, dtype=int)[Y], "got (13, 3)", "y.argmax(1)"),
        (np.zeros((13, 4)), Y.astype(float), "got float64", "y.astype('int64')"),
        (np.zeros((13, 4)), Y.astype(bool), "got bool", "y.astype('int64')"),
        (np.zeros((13, 4)), np.array(list("abcabcabcabca")), "got <U1", "numpy.unique(y, return_inverse=True)[1]"),
        (np.zeros((13, 28, 28, 1)), Y, "got (13, 28, 28, 1), where the channels are last", "x.transpose(0, 3, 1, 2)"),
        (np.zeros((13, 32, 48, 3), np.uint8), Y, "the channels are last", "x.transpose(0, 3, 1, 2)"),
        (np.zeros((13, 16, 24, 2), np.uint8), Y, "the channels are last", "x.transpose(0, 3, 1, 2)"),
        (np.zeros((13, 32, 32, 13), np.uint8), Y, "the channels are last", "x.transpose(0, 3, 1, 2)"),
        (np.zeros((13, 4)), Y.reshape(1, 13), "got (1, 13)", "y.reshape(-1)"),
        (np.zeros((13, 4)), Y.reshape(13, 1, 1), "got (13, 1, 1)", "y.reshape(-1)"),
        (np.zeros((13, 4)), np.eye(3)[Y].T, "got (3, 13)", "y.argmax(0)"),
        (np.zeros((2, 9, 8, 13)), Y, "in shape (2, 9, 8, 13) the samples are last", "numpy.moveaxis(x, -1, 0)"),
        (np.zeros((13, 2, 3, 2, 2)), Y, "got (13, 2, 3, 2, 2)", "x.reshape(len(x), -1)"),
        (np.zeros(13), Y, "got (13,)", "x.reshape(-1, 1)"),
        (np.zeros((13, 4), int), Y, "got int64", "x.astype('float32')"),
    ],
)
def test_the_line_that_fixes_a_dataset_works(x, y, found, fix):
    """The message is taken at its word: what it says to save is accepted."""
    with pytest.raises(DataError) as caught:
        pair(x, y)
    assert found in str(caught.value) and fix in str(caught.value)
    fixed = eval(fix, {"numpy": np, "x": x, "y": y})
    pair(fixed, y) if "x" in fix.replace("argmax", "").replace("axis", "") else pair(x, fixed)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((13, 4)), Y + 0.5, r"label 0\.5 of sample 0 is no class"),
        (np.zeros((13, 4)), np.where(Y == 2, np.nan, Y), r"label nan of sample \d+ is no class"),
        (Y, np.zeros((13, 4)), r"samples of shape \(13,\) and labels of shape \(13, 4\); are x and y swapped\?"),
        (np.zeros((13, 4)), np.array(3), r"got \(\); there are 13 samples"),
        (np.zeros((13, 4)), np.zeros((7, 5), int), r"got \(7, 5\); there are 13 samples"),
    ],
)
def test_what_no_line_fixes_is_explained(x, y, message):
    with pytest.raises(DataError, match=message) as caught:
        pair(x, y)
    assert "save" not in str(caught.value) and "astype" not in str(caught.value)


@pytest.mark.parametrize(
    "shape",
    [(13, 1, 28, 28), (13, 3, 32, 48), (13, 2, 5, 3), (13, 16, 4, 4), (13, 7, 9, 1), (13, 64, 32, 8), (13, 16, 16, 16)],
)
def test_channels_first_stay_what_they_are(shape):
    assert pair(np.zeros(shape)).x.shape == shape
