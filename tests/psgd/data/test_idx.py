"""IDX files against arrays that the test writes itself with struct."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psgd import DataError
from psgd.data import idx

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def encode(array, kind="u1"):
    head = struct.pack(f">4B{array.ndim}I", 0, 0, CODES[kind], array.ndim, *array.shape)
    return head + array.astype(f">{kind}").tobytes()


def distinct(*shape):
    return np.arange(np.prod(shape)).reshape(shape)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("packed", [False, True])
def test_round_trip(tmp_path, kind, shape, packed):
    data = encode(distinct(*shape), kind)
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(data) if packed else data)
    got = idx.read(path)
    assert got.dtype == np.dtype(kind)
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, distinct(*shape))


def test_plain_bytes_are_mapped_read_only(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(encode(distinct(5, 2, 2)))
    got = idx.read(path)
    assert isinstance(got, np.memmap)
    assert not got.flags.writeable


def test_gzip_of_several_members(tmp_path):
    data = encode(distinct(7, 3, 3))
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(data[:20]) + gzip.compress(data[20:]))
    np.testing.assert_array_equal(idx.read(path), distinct(7, 3, 3))


GOOD = encode(distinct(5, 2, 3))
BAD = {
    "empty file": (b"", "empty file"),
    "half a magic": (GOOD[:3], "truncated in its header"),
    "half a header": (GOOD[:9], "truncated in its header"),
    "truncated": (GOOD[:-1], "truncated"),
    "trailing": (GOOD + b"\0", "trailing bytes"),
    "magic": (b"\1" + GOOD[1:], "bad magic 01 00 08 03"),
    "type": (GOOD[:2] + b"\x0a" + GOOD[3:], "bad magic 00 00 0a 03"),
    "no dimensions": (GOOD[:3] + b"\0" + GOOD[4:], "bad magic"),
    "five dimensions": (GOOD[:3] + b"\5" + GOOD[4:], "bad magic"),
    "no samples": (encode(distinct(0, 2, 3)), "empty"),
    "lying header": (GOOD[:4] + b"\xff" * 12 + GOOD[16:], "truncated"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_damage_is_named(tmp_path, name, packed):
    data, message = BAD[name]
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=message) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)


def flip(data, position):
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


PACKED = gzip.compress(encode(distinct(50, 20, 20)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (GOOD, "corrupt gzip"),
        (PACKED[:-1], "truncated"),
        (PACKED[:-8], "truncated"),
        (PACKED[: len(PACKED) // 2], "truncated"),
        (PACKED[:12], "truncated"),
        (flip(PACKED, len(PACKED) - 6), "corrupt"),
        (PACKED + b"garbage", "corrupt"),
    ],
    ids=["plain", "no last byte", "no checksum", "half", "header only", "checksum", "garbage behind"],
)
def test_damaged_gzip_is_named(tmp_path, data, message):
    path = tmp_path / "images.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)


def test_gzip_under_a_plain_name(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(PACKED)
    with pytest.raises(DataError, match=r"does not end in \.gz; rename it"):
        idx.read(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_missing_and_unreadable(tmp_path, suffix):
    with pytest.raises(DataError, match="No such file"):
        idx.read(tmp_path / f"none{suffix}")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    with pytest.raises(DataError, match="Is a directory"):
        idx.read(folder)


def edits(data):
    """A sound file with some bytes of its head replaced, cut or lengthened anywhere."""
    replaced = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 255)), max_size=6)
    return st.tuples(replaced, st.integers(0, len(data)), st.binary(max_size=8)).map(lambda edit: _edited(data, *edit))


def _edited(data, replaced, cut, tail):
    changed = bytearray(data)
    for position, value in replaced:
        changed[position] = value
    return bytes(changed[:cut]) + tail


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(st.binary(max_size=64), edits(GOOD), edits(GOOD).map(gzip.compress), edits(gzip.compress(GOOD))),
    packed=st.booleans(),
)
def test_any_bytes_give_an_array_or_a_data_error(scratch, data, packed):
    path = scratch / ("fuzz.gz" if packed else "fuzz")
    path.write_bytes(data)
    message = ""
    tracemalloc.start()
    try:
        array = idx.read(path)
        assert array.size > 0
        assert 1 <= array.ndim <= 4
        assert packed or array.nbytes < len(data)
    except DataError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20
    assert not message or str(path) in message
