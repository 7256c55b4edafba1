"""Mean, standard deviation and the checks of values, against closed forms and two-pass float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psgd import DataError
from psgd.data.dataset import Dataset, assemble, split
from psgd.data.normalization import CHUNK_VALUES, Statistics, measure, validate


def part(x, y=None, first=0):
    whole = split(x, np.arange(len(x)) % 3 if y is None else np.asarray(y), "X", "Y")
    return type(whole)(whole.x, whole.y, "X", "Y", first)


def test_closed_form_of_all_bytes():
    # 0 to 255 once each: mean (n - 1) / 2, variance (n^2 - 1) / 12
    got = measure(part(np.arange(256, dtype=np.uint8).reshape(64, 4)))
    assert got.mean == 127.5
    assert got.std == pytest.approx(np.sqrt((256**2 - 1) / 12), rel=1e-15)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_closed_form_over_many_chunks(dtype):
    n = 4 * CHUNK_VALUES + 12
    got = measure(part(np.arange(n, dtype=dtype).reshape(-1, 4)))
    assert got.mean == pytest.approx((n - 1) / 2, rel=1e-14)
    assert got.std == pytest.approx(np.sqrt((n**2 - 1) / 12), rel=1e-13)


def test_bytes_over_many_chunks_are_exact():
    x = np.random.default_rng(1).integers(0, 256, (2 * CHUNK_VALUES // 784 + 5, 784), np.uint8)
    total, squares = (sum(int(v) ** p * int(c) for v, c in enumerate(np.bincount(x.ravel()))) for p in (1, 2))
    got = measure(part(x))
    assert got.mean == total / x.size
    assert got.std == pytest.approx(np.sqrt(squares / x.size - (total / x.size) ** 2), rel=1e-13)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 9),
    offset=st.sampled_from([0.0, 1e3, -1e8]),
    seed=st.integers(0, 99),
)
def test_floats_with_any_offset(rows, columns, offset, seed):
    x = np.random.default_rng(seed).normal(offset, 1.0, (rows, columns))
    got = measure(part(x))
    exact = x - x.mean(dtype=np.longdouble)
    assert got.mean == pytest.approx(float(x.mean(dtype=np.longdouble)), rel=1e-14, abs=1e-14)
    assert got.std == pytest.approx(float(np.sqrt((exact * exact).mean())), rel=1e-10, abs=1e-7 * (offset != 0))


def test_samples_larger_than_a_chunk():
    x = np.arange(3 * (CHUNK_VALUES + 1), dtype=np.float64).reshape(3, -1)
    assert measure(part(x)).mean == pytest.approx((x.size - 1) / 2, rel=1e-14)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e5, 1e300])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_constant_dataset_has_scale_one(value, dtype):
    value = min(value, float(np.finfo(dtype).max))
    got = measure(part(np.full((100, 7), value, dtype)))
    assert got.std == 0
    assert got.scale == 1
    assert got.mean == np.dtype(dtype).type(value)


def test_scale():
    assert Statistics(3.0, 0.25).scale == 4
    assert Statistics(3.0, 5e-324).scale == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("row", [0, 2 * CHUNK_VALUES // 4 - 1, CHUNK_VALUES // 2 + 9])
def test_nan_and_inf_name_the_first_bad_sample(bad, dtype, row):
    x = np.zeros((CHUNK_VALUES // 2 + 10, 4), dtype)
    x[row, 2] = bad
    x[row:, 3] = bad
    with pytest.raises(DataError, match=rf"^X: sample {row + 5} holds {bad}"):
        measure(part(x, first=5))


def test_variance_beyond_float64():
    x = np.array([[1e200, -1e200], [1e308, -1e308], [0, 1]])
    with pytest.raises(DataError, match=r"^X: values so large"):
        measure(part(x))


def dataset(train_y, test_y=(0, 1), classes=None):
    train, test = (part(np.eye(len(y), 4), y) for y in (train_y, test_y))
    data = assemble("d", train, test)
    return data if classes is None else Dataset("d", train, test, data.sample_shape, classes)


def test_validate_measures_the_training_part():
    data = assemble("d", part(np.arange(6.0).reshape(2, 3)), part(np.zeros((2, 3))))
    got = validate(data)
    assert got.mean == 2.5
    assert got.std == pytest.approx(np.sqrt(35 / 12), rel=1e-15)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 1, -1, 1], [0], "^Y: label -1 of sample 2 is out of range; expected 0 to 1.*save numpy.unique"),
        ([-3, -1], [0], r"^Y: label -3 of sample 0 is out of range; expected 0, 1, \.\.\."),
        ([0, 1, 2], [0, 3], "^Y: label 3 of sample 1 is out of range; expected 0 to 2"),
        ([0, 1, 2], [-1], "^Y: label -1 of sample 0"),
        ([0, 1, 200, 2], [0], "^Y: label 200 of sample 2 is out of range: no training sample has label 3"),
        ([0, 2**62], [0], f"^Y: label {2**62} of sample 1"),
        ([1, 2, 3], [1], "^Y: label 1 of sample 0 .* no training sample has label 0"),
    ],
)
def test_labels_out_of_range(train, test, message):
    with pytest.raises(DataError, match=message):
        validate(dataset(train, test))


def test_labels_beyond_known_classes():
    with pytest.raises(DataError, match=r"label 2 of sample 2 .* expected 0 to 1"):
        validate(dataset([0, 1, 2], classes=2))


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "u8", "i8"])
def test_every_integer_dtype_of_labels(dtype):
    validate(dataset(np.array([0, 1, 2, 1], dtype), np.array([1, 0], dtype)))


def test_extreme_unsigned_label():
    with pytest.raises(DataError, match=f"label {2**64 - 1} of sample 1"):
        validate(dataset(np.array([0, 2**64 - 1], np.uint64)))


def test_nan_in_the_test_part():
    data = dataset([0, 1, 2])
    x = np.array(data.test.x)
    x[1, 3] = np.nan
    with pytest.raises(DataError, match=r"^X: sample 1 holds nan"):
        validate(Dataset("d", data.train, part(x, [0, 1]), data.sample_shape, data.classes))
