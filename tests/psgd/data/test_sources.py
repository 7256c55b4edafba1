"""Names and paths to datasets; the digits and Fashion-MNIST themselves."""

import gzip
import hashlib
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psgd.data
from psgd import DataError
from psgd.data import load

X = np.arange(13 * 3 * 2, dtype=np.uint8).reshape(13, 3, 2)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0], np.uint8)
FASHION = Path("/usr/share/datasets/fashion-mnist")


def write_idx(path, array):
    data = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def idx_folder(folder, mark="-", end="", parts=("train", "t10k")):
    folder.mkdir(exist_ok=True)
    for i, part in enumerate(parts):
        write_idx(folder / f"{part}-images{mark}idx3-ubyte{end}", X + i)
        write_idx(folder / f"{part}-labels{mark}idx1-ubyte{end}", Y)
    return folder


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_folder(tmp_path, mark, end):
    data = load(idx_folder(tmp_path, mark, end))
    assert data.name == str(tmp_path)
    assert data.sample_shape == (1, 3, 2)
    assert data.classes == 3
    np.testing.assert_array_equal(data.train.x[:, 0], X)
    np.testing.assert_array_equal(data.test.x[:, 0], X + 1)
    np.testing.assert_array_equal(data.train.y, Y)
    assert isinstance(data.train.x, np.memmap) == (end == "")


def test_a_plain_file_is_preferred_to_gzip(tmp_path):
    idx_folder(tmp_path, end=".gz")
    assert isinstance(load(idx_folder(tmp_path)).train.x, np.memmap)


def test_idx_folder_without_test_part(tmp_path):
    data = load(idx_folder(tmp_path, parts=("train",)))
    assert (data.train.samples, data.test.samples) == (10, 3)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("train-images-idx3-ubyte", "train-images-idx3-ubyte .* is missing beside its labels"),
        ("train-labels-idx1-ubyte", "train-labels-idx1-ubyte .* is missing beside its images"),
        ("t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte .* is missing"),
    ],
)
def test_idx_folder_with_a_file_missing(tmp_path, missing, message):
    (idx_folder(tmp_path) / missing).unlink()
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_idx_folder_with_a_test_part_only(tmp_path):
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        load(idx_folder(tmp_path, parts=("t10k",)))


def test_idx_counts_that_differ(tmp_path):
    write_idx(idx_folder(tmp_path) / "train-labels-idx1-ubyte", Y[:-1])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte holds 13 samples, but .* holds 12 labels"):
        load(tmp_path)


def arrays(train, test):
    both = dict(zip(train, (X.astype(np.float32), Y.astype(np.int64)), strict=True))
    return both | dict(zip(test, (X.astype(np.float32) + 1, Y.astype(np.int64)), strict=True)) if test else both


LAYOUTS = [
    (("x_train", "y_train"), ("x_test", "y_test")),
    (("x_train", "y_train"), ()),
    (("x", "y"), ("x_test", "y_test")),
    (("x", "y"), ()),
]


@pytest.mark.parametrize("names", LAYOUTS)
@pytest.mark.parametrize("archive", [False, True])
def test_numpy_files(tmp_path, names, archive):
    given = arrays(*names)
    path = tmp_path
    if archive:
        path = tmp_path / "d.npz"
        np.savez(path, **given)
    else:
        for name, array in given.items():
            np.save(tmp_path / f"{name}.npy", array)
    data = load(str(path))
    whole = X.astype(np.float32)
    if names[1]:
        np.testing.assert_array_equal(data.train.x[:, 0], whole)
        np.testing.assert_array_equal(data.test.x[:, 0], whole + 1)
    else:
        np.testing.assert_array_equal(data.train.x[:, 0], whole[:10])
        np.testing.assert_array_equal(data.test.x[:, 0], whole[10:])
    assert data.train.x.dtype == np.float32
    assert isinstance(data.train.x, np.memmap) != archive


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x_train",), "y_train is missing; found x_train"),
        (("x_train", "y_train", "x_test"), "y_test is missing"),
        (("x",), "expected x_train and y_train, or x and y; found only x"),
        (("x_test", "y_test"), "found only x_test, y_test"),
    ],
)
def test_numpy_files_missing(tmp_path, archive, names, message):
    given = dict.fromkeys(names, Y)
    path = tmp_path
    if archive:
        path = tmp_path / "d.npz"
        np.savez(path, **given)
    else:
        for name, array in given.items():
            np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(DataError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_archive_of_other_arrays(tmp_path):
    np.savez(tmp_path / "d.npz", images=X)
    with pytest.raises(DataError, match=r"expected x_train and y_train, or x and y; found only images$"):
        load(tmp_path / "d.npz")


def test_objects_are_never_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([["a"], [None]], object), allow_pickle=True)
    np.save(tmp_path / "y.npy", Y[:2])
    with pytest.raises(DataError, match=r"x\.npy: holds Python objects"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["mnsit", "/does/not/exist", "", "a\0b", "x" * 5000])
def test_unknown_names_list_what_is_accepted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"'digits' .*'fashion-mnist'.*IDX.*npz.*npy"):
        load(name)


def test_folder_without_data_and_single_files(tmp_path):
    with pytest.raises(DataError, match=r"is empty; expected|contains no dataset"):
        load(tmp_path)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(DataError, match="one file is not a dataset"):
        load(tmp_path / "x.npy")


def test_not_a_zip(tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"not a valid .npz"):
        load(path)


def test_digits():
    data = load("digits")
    assert (data.train.samples, data.test.samples) == (1497, 300)
    assert data.sample_shape == (1, 8, 8)
    assert data.classes == 10
    assert data.train.x.dtype == np.uint8
    x = np.concatenate([data.train.x, data.test.x])
    y = np.concatenate([data.train.y, data.test.y])
    assert (x.min(), x.max()) == (0, 16)
    # class counts of the test part, as the repository's optdigits.names states them
    np.testing.assert_array_equal(np.bincount(y), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    # first line of optdigits.tes: row 0 is the first of the test part
    np.testing.assert_array_equal(data.test.x[0, 0, 0], [0, 0, 5, 13, 9, 1, 0, 0])


def test_digits_checksums_are_those_in_the_text():
    folder = Path(psgd.data.__file__).parent / "files"
    text = (folder / "digits.txt").read_text()
    packed = sorted(folder.glob("*.gz"))
    assert len(packed) == 2
    for path in packed:
        digest = hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
        assert f"{digest}  {path.stem}" in text


def test_fashion_mnist_is_found_in_psgd_data_first(tmp_path, monkeypatch):
    idx_folder(tmp_path / "fashion-mnist")
    monkeypatch.setenv("PSGD_DATA", str(tmp_path))
    data = load("fashion-mnist")
    assert data.train.samples == 13
    assert data.classes == 10


def test_fashion_mnist_is_found_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("psgd.data.sources._SYSTEM", tmp_path / "none")
    monkeypatch.delenv("PSGD_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"not found in .*apt install dataset-fashion-mnist.*PSGD_DATA"):
        load("fashion-mnist")
    idx_folder(tmp_path / "fashion-mnist")
    assert load("fashion-mnist").train.samples == 13


@pytest.mark.skipif(not FASHION.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist(monkeypatch):
    from psgd.data.normalization import validate

    monkeypatch.delenv("PSGD_DATA", raising=False)
    data = load("fashion-mnist")
    assert (data.train.samples, data.test.samples) == (60000, 10000)
    assert data.sample_shape == (1, 28, 28)
    np.testing.assert_array_equal(np.bincount(data.train.y), [6000] * 10)
    np.testing.assert_array_equal(np.bincount(data.test.y), [1000] * 10)
    statistics = validate(data)
    assert statistics.mean / 255 == pytest.approx(0.2860, abs=5e-5)
    assert statistics.std / 255 == pytest.approx(0.3530, abs=5e-5)


def test_loading_imports_neither_mpi_nor_numba():
    code = (
        "import sys, psgd.data; psgd.data.load('digits'); "
        "assert not {'mpi4py', 'numba', 'cupy'} & set(sys.modules), sys.modules.keys()"
    )
    root = Path(psgd.__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=root)


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        (("images", "labels"), {"x": "images", "y": "labels"}),
        (("X", "Y"), {"x": "X", "y": "Y"}),
        (("data", "target"), {"x": "data", "y": "target"}),
        (("arr_0", "arr_1"), {"x": "arr_0", "y": "arr_1"}),
        (("X_train", "Y_train"), {"x_train": "X_train", "y_train": "Y_train"}),
        (("trainX", "trainY"), {"x_train": "trainX", "y_train": "trainY"}),
        (("xtrain", "ytrain"), {"x_train": "xtrain", "y_train": "ytrain"}),
        (("X_tr", "Y_tr", "X_te", "Y_te"), {"x_train": "X_tr", "y_train": "Y_tr", "x_test": "X_te", "y_test": "Y_te"}),
        (
            ("X_train", "Y_train", "X_val", "Y_val"),
            {"x_train": "X_train", "y_train": "Y_train", "x_test": "X_val", "y_test": "Y_val"},
        ),
        (("faces", "labels"), {"x": "faces", "y": "labels"}),
        (("pixels", "y"), {"x": "pixels", "y": "y"}),
        (("second", "first"), {"x": "second", "y": "first"}),
        (("train_images", "train_labels"), {"x_train": "train_images", "y_train": "train_labels"}),
        (
            ("train_images", "train_labels", "test_images", "test_labels"),
            {"x_train": "train_images", "y_train": "train_labels", "x_test": "test_images", "y_test": "test_labels"},
        ),
    ],
)
@pytest.mark.parametrize("archive", [True, False])
def test_the_line_that_renames_arrays_works(tmp_path, monkeypatch, names, fix, archive):
    """The message is taken at its word: its line is run, and the dataset loads then."""
    arrays = {name: X if k % 2 == 0 else Y for k, name in enumerate(names)}
    if names[0] == "second":  # labels come first
        arrays = dict(reversed(arrays.items()))
    if archive:
        np.savez(tmp_path / "d.npz", **arrays)
    else:
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
    where = tmp_path / "d.npz" if archive else tmp_path
    with pytest.raises(DataError) as caught:
        load(where)
    text, _, line = str(caught.value).partition(f"found only {', '.join(sorted(names))}: ")
    assert text.startswith(f"{where}: ") and line
    monkeypatch.chdir(tmp_path)
    if archive:
        exec(line, {"numpy": np})
    else:
        subprocess.run(line, shell=True, check=True, cwd=tmp_path)
    data = load(where)
    assert np.array_equal(data.train.x[:3].reshape(3, -1), X[:3].reshape(3, -1))
    assert sorted(fix) == sorted(each.stem if not archive else each for each in _there(where, archive))


def _there(where, archive):
    return np.load(where).files if archive else where.glob("*.npy")


@pytest.mark.parametrize(("names", "fix"), [(("x_train", "y"), "x=d['x_train'], y=d['y']"), (("x_test", "y"), "")])
def test_half_of_a_pair(tmp_path, names, fix):
    np.savez(tmp_path / "d.npz", **dict(zip(names, (X, Y), strict=True)))
    with pytest.raises(DataError, match=f"found {names[0]}, y") as caught:
        load(tmp_path / "d.npz")
    assert str(caught.value).partition("savez('d.npz', ")[2].removesuffix(")") == fix


def test_the_suffix_may_be_in_capitals(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    (tmp_path / "d.npz").rename(tmp_path / "D.NPZ")
    assert load(tmp_path / "D.NPZ").train.samples == 10


def test_names_that_say_nothing_are_listed(tmp_path):
    np.savez(tmp_path / "d.npz", a=X, b=Y, c=Y)
    with pytest.raises(DataError, match=r"expected x_train and y_train, or x and y; found only a, b, c$"):
        load(tmp_path / "d.npz")
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(DataError, match=r"empty: is empty; expected"):
        load(folder)
    (folder / "notes.txt").write_text("")
    with pytest.raises(DataError, match=r"contains no dataset, but notes\.txt; expected"):
        load(folder)
