"""NumPy's files, sound and damaged."""

import io
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psgd import DataError
from psgd.data import npy

VALUES = np.arange(24, dtype=np.float32).reshape(6, 4)


def saved(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8", "i8"])
def test_npy_is_mapped_read_only(tmp_path, dtype):
    path = tmp_path / "x.npy"
    np.save(path, VALUES.astype(dtype))
    got = npy.read(path)
    assert isinstance(got, np.memmap)
    assert not got.flags.writeable
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, VALUES)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_round_trip(tmp_path, save):
    path = tmp_path / "d.npz"
    save(path, x=VALUES, y=np.arange(6), f=np.asfortranarray(VALUES), unused=np.array([None], object))
    got = npy.read_archive(path, ("x", "y", "f", "absent"))
    assert sorted(got) == ["f", "x", "y"]
    np.testing.assert_array_equal(got["x"], VALUES)
    np.testing.assert_array_equal(got["y"], np.arange(6))
    np.testing.assert_array_equal(got["f"], VALUES)
    assert got["f"].flags.c_contiguous


GOOD = saved(VALUES)
OBJECTS = saved(np.array([1, "two"], object), allow_pickle=True)
BAD = {
    "empty": (b"", "not a valid .npy"),
    "not npy": (b"x" * 200, "not a valid .npy"),
    "half a header": (GOOD[:40], "not a valid .npy"),
    "truncated": (GOOD[:-1], "truncated"),
    "trailing": (GOOD + b"\0", "trailing"),
    "objects": (OBJECTS, "pickles"),
    "no samples": (saved(VALUES[:0]), "empty"),
    "negative": (GOOD.replace(b"(6, 4)", b"(6,-4)"), "impossible shape"),
    "lying header": (GOOD.replace(b"(6, 4), }" + b" " * 12, b"(99999999999, 4), }  "), "truncated"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("archive", [False, True])
def test_damage_is_named(tmp_path, name, archive):
    data, message = BAD[name]
    path = tmp_path / ("d.npz" if archive else "x.npy")
    if archive:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("x.npy", data)
    else:
        path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        npy.read_archive(path, ("x",)) if archive else npy.read(path)
    assert str(path) in str(caught.value)
    assert not archive or "(x)" in str(caught.value)


def test_fortran_order_cannot_be_mapped(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.asfortranarray(VALUES))
    with pytest.raises(DataError, match="ascontiguousarray"):
        npy.read(path)


def test_missing(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        npy.read(tmp_path / "x.npy")
    with pytest.raises(DataError, match="No such file"):
        npy.read_archive(tmp_path / "d.npz", ("x",))


def test_other_compression_is_refused(tmp_path):
    path = tmp_path / "d.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("x.npy", GOOD)
    with pytest.raises(DataError, match="savez_compressed"):
        npy.read_archive(path, ("x",))


def test_wrong_checksum_in_an_archive(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=VALUES)
    data = path.read_bytes()
    position = data.index(struct.pack("<2f", 5, 6))
    path.write_bytes(data[:position] + b"\xff" + data[position + 1 :])
    with pytest.raises(DataError, match="corrupt"):
        npy.read_archive(path, ("x",))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    np.savez_compressed(folder / "good.npz", x=VALUES, y=np.arange(6))
    return folder


@settings(max_examples=300, deadline=None)
@given(
    edit=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.floats(0.2, 1),
    archive=st.booleans(),
)
def test_any_damage_gives_arrays_or_a_data_error(scratch, edit, cut, archive):
    data = bytearray((scratch / "good.npz").read_bytes() if archive else GOOD)
    for place, value in edit:
        data[int(place * len(data))] = value
    path = scratch / "fuzz"
    path.write_bytes(bytes(data[: int(cut * len(data)) + 1]))
    message = ""
    try:
        arrays = npy.read_archive(path, ("x", "y")).values() if archive else [npy.read(path)]
        assert all(array.size > 0 for array in arrays)
    except DataError as error:
        message = str(error)
    assert not message or str(path) in message
