"""A buffer as collectives see it: parts, other types, and what is written back."""

import numpy as np
import pytest

from psgd.collectives.arguments.view import KINDS, NAMES, CopiedView, View
from psgd.kernels.errors import UsageError


def plain(n=10):
    array = np.arange(float(n))
    return View(array, "float64", array), array


def copied():
    """A copy of a strided array."""
    whole = np.arange(20.0)
    target = whole[::2]
    return CopiedView(target.copy(), "float64", target), whole


def test_names_are_native_dtypes():
    assert sorted(KINDS.values()) == sorted(NAMES) and all(dtype.isnative for dtype in KINDS)


def test_a_part_is_the_same_memory():
    view, array = plain()
    part = view.part(3, 4)
    assert (part.size, part.shape, part.kind) == (4, (4,), "float64")
    part.flat[:] = -1
    assert array.tolist() == [0, 1, 2, -1, -1, -1, -1, 7, 8, 9]
    part.write_back()


def test_a_copy_goes_back_by_logical_index():
    view, whole = copied()
    view.flat[:] = np.arange(10) + 100
    assert whole.tolist() == list(range(20))
    view.write_back()
    assert whole[::2].tolist() == list(range(100, 110)) and whole[1::2].tolist() == list(range(1, 20, 2))


def test_only_what_a_part_covers_goes_back():
    view, whole = copied()
    part = view.part(2, 3)
    part.flat[:] = -1
    view.flat[8] = -2  # outside
    part.write_back()
    assert whole[::2].tolist() == [0, 2, -1, -1, -1, 10, 12, 14, 16, 18]


def test_ranges_leave_what_lies_between():
    view, whole = copied()
    view.flat[:] = -1
    view.restrict([(0, 1), (4, 4), (8, 10)])
    view.write_back()
    assert whole[::2].tolist() == [-1, 2, 4, 6, 8, 10, 12, 14, -1, -1]


def test_the_same_bytes_as_another_type():
    view, array = plain(4)
    other = view.reinterpret(np.dtype("int32"), "int32", "recvbuf", writable=True)
    assert other.size == 8 and other.kind == "int32" and np.shares_memory(other.flat, array)
    with pytest.raises(
        UsageError, match=r"recvbuf: expected a whole number of complex128 elements, got 24 bytes \(3 of"
    ):
        plain(3)[0].reinterpret(np.dtype("complex128"), "complex128", "recvbuf", writable=True)


def test_bytes_that_are_not_aligned_are_copied_and_go_back():
    raw = np.zeros(33, np.uint8)
    bytes_ = raw[1:]
    view = View(bytes_, "uint8", bytes_)
    other = view.reinterpret(np.dtype("float64"), "float64", "recvbuf", writable=True)
    if raw.ctypes.data % 8 == 0:
        assert other.copied and other.flat.flags.aligned
    other.flat[:] = [1, 2, 3, 4]
    other.write_back()
    assert np.frombuffer(raw[1:].tobytes()).tolist() == [1, 2, 3, 4] and raw[0] == 0
    assert not hasattr(view.reinterpret(np.dtype("float64"), "float64", "sendbuf", writable=False), "_target")
