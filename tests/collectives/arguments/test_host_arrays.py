import array
import ctypes
import itertools
import os
import subprocess
import sys
import timeit

import numpy as np
import pytest

from psgd.collectives.arguments.host_arrays import view
from psgd.kernels.errors import UsageError

KINDS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


def distinct(shape, dtype="float32"):
    return (np.arange(np.prod(shape, dtype=int)) + 1).reshape(shape).astype(dtype)


class Interface:
    def __init__(self, values):
        self.values = values
        self.__array_interface__ = values.__array_interface__


class DLPack:
    def __init__(self, values, device=(1, 0)):
        self.values = values
        self.device = device

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize("kind", KINDS)
def test_contiguous_is_the_same_memory(kind):
    for case in itertools.product([(), (0,), (1,), (7,), (3, 0), (3, 5), (2, 1, 4)], [False, True]):
        shape, writable = case
        values = distinct(shape, kind)
        taken = view(values, "sendbuf", writable)
        assert type(taken.flat) is np.ndarray, case
        assert (taken.kind, taken.shape, taken.flat.shape) == (kind, shape, (values.size,)), case
        assert taken.flat.dtype == kind, case
        assert taken.flat.ctypes.data == values.ctypes.data, case
        np.testing.assert_array_equal(taken.flat, values.ravel(), str(case))
        taken.write_back()
        np.testing.assert_array_equal(values, distinct(shape, kind), str(case))


LAYOUTS = {
    "strided": lambda dtype: distinct(20, dtype)[1:18:3],
    "reversed": lambda dtype: distinct(7, dtype)[::-1],
    "fortran": lambda dtype: np.asfortranarray(distinct((3, 5), dtype)),
    "transposed": lambda dtype: distinct((2, 3, 4), dtype).transpose(2, 0, 1),
    "block": lambda dtype: distinct((5, 6), dtype)[1:4, 2:5],
    "both reversed": lambda dtype: distinct((4, 3), dtype)[::-1, ::-2],
    "unaligned": lambda dtype: np.ndarray((5,), dtype, bytearray(5 * np.dtype(dtype).itemsize + 1), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["int16", "float16", "float32", "complex128", ">f4", ">i8", ">c16"])
def test_any_layout_is_taken_and_written_by_logical_index(layout, kind):
    values = LAYOUTS[layout](kind)
    values[...] = distinct(values.shape)
    owner = values if values.base is None else values.base
    whole = bytes(owner)
    for writable in (False, True):
        taken = view(values, "recvbuf", writable)
        assert taken.flat.flags.c_contiguous
        assert taken.flat.flags.aligned
        assert taken.flat.dtype.isnative
        assert taken.kind == np.dtype(kind).newbyteorder("=").name
        assert taken.shape == values.shape
        np.testing.assert_array_equal(taken.flat, np.arange(values.size) + 1)
        assert not np.shares_memory(taken.flat, values)
    taken.flat[:] = 100 + np.arange(values.size)
    assert bytes(owner) == whole
    taken.write_back()
    for position, index in enumerate(np.ndindex(values.shape)):
        assert values[index] == 100 + position
    values[...] = distinct(values.shape)
    assert bytes(owner) == whole  # nothing outside the elements was touched


def test_a_copy_to_send_is_not_written_back():
    values = distinct((3, 5)).T
    taken = view(values, "sendbuf", False)
    taken.flat[:] = -1
    taken.write_back()
    np.testing.assert_array_equal(values, distinct((3, 5)).T)


def test_big_endian_0d():
    values = np.array(3, ">f8")
    taken = view(values, "recvbuf", True)
    taken.flat[0] = 5
    taken.write_back()
    assert (values[()], taken.shape) == (5, ())


@pytest.mark.parametrize("start", [0, 2, 5])
def test_only_the_part_is_written_back(start):
    for values in (distinct((3, 5)).T, distinct(15).astype(">f4"), distinct(15)):
        expected = values.copy()
        part = view(values, "recvbuf", True).part(start, 4)
        assert part.shape == (4,)
        np.testing.assert_array_equal(part.flat, values.ravel()[start : start + 4])
        values.flat[start + 4] = -7  # the caller may change what the collective does not touch
        expected.flat[start + 4] = -7
        part.flat[:] = [50, 51, 52, 53]
        expected.flat[start : start + 4] = [50, 51, 52, 53]
        part.write_back()
        np.testing.assert_array_equal(values, expected)


def test_subclasses_are_plain_memory(tmp_path):
    matrix = distinct((2, 3)).view(np.matrix)
    mapped = np.memmap(tmp_path / "file", np.float32, "w+", shape=(4,))
    for values in (matrix, mapped):
        taken = view(values, "recvbuf", True)
        assert type(taken.flat) is np.ndarray
        assert taken.flat.ndim == 1
        taken.flat[:] = np.arange(values.size) + 9
        np.testing.assert_array_equal(np.asarray(values).ravel(), np.arange(values.size) + 9)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: bytearray(b"\1\2\3\4"), "uint8"),
        (lambda: array.array("f", [1, 2, 3, 4]), "float32"),
        (lambda: array.array("q", [1, 2, 3, 4]), "int64"),
        (lambda: memoryview(array.array("d", [1, 2, 3, 4])), "float64"),
        (lambda: memoryview(array.array("d", range(8)))[1:5], "float64"),
        (lambda: (ctypes.c_int32 * 4)(1, 2, 3, 4), "int32"),
        (lambda: ctypes.create_string_buffer(b"\1\2\3\4", 4), "uint8"),
        (lambda: Interface(np.array([1.0, 2, 3, 4])), "float64"),
        (lambda: DLPack(np.array([1.0, 2, 3, 4])), "float64"),
    ],
)
def test_other_buffers_are_the_same_memory(make, kind):
    obj = make()
    taken = view(obj, "recvbuf", True)
    assert taken.kind == kind
    np.testing.assert_array_equal(taken.flat, [1, 2, 3, 4])
    taken.flat[:] = [9, 8, 7, 6]
    taken.write_back()
    np.testing.assert_array_equal(view(obj, "sendbuf", False).flat, [9, 8, 7, 6])


def test_strided_buffers_are_written_back():
    memory = bytearray(range(10))
    taken = view(memoryview(memory)[::3], "recvbuf", True)
    np.testing.assert_array_equal(taken.flat, [0, 3, 6, 9])
    taken.flat[:] = 100 + np.arange(4)
    taken.write_back()
    assert list(memory) == [100, 1, 2, 101, 4, 5, 102, 7, 8, 103]


def test_bytes_can_be_sent():
    np.testing.assert_array_equal(view(b"abc", "sendbuf", False).flat, [97, 98, 99])


def read_only():
    values = distinct(4)
    values.flags.writeable = False
    return values


RECEIVE_ERRORS = [
    (read_only, ["read-only", "float32", "np.empty"]),
    (lambda: b"abcd", ["read-only", "bytes", "uint8"]),
    (lambda: Interface(read_only()), ["read-only", "Interface"]),
    (lambda: np.broadcast_to(distinct(3), (4, 3)), ["overlap", "(4, 3)", "float32"]),
    (lambda: np.lib.stride_tricks.as_strided(distinct(9), (4, 3), (4, 4)), ["overlap", "(4, 4)", "float32"]),
    (lambda: np.lib.stride_tricks.as_strided(distinct(9), (5,), (2,)), ["overlap", "(2,)"]),
]


@pytest.mark.parametrize(("make", "words"), RECEIVE_ERRORS)
def test_what_cannot_receive_can_send(make, words):
    obj = make()
    with pytest.raises(UsageError) as caught:
        view(obj, "recvbuf", True)
    for word in ("recvbuf: expected", ", got ", "; pass", *words):
        assert word in str(caught.value)
    sent = view(obj, "sendbuf", False).flat
    assert sent.tobytes() == (obj if isinstance(obj, bytes) else getattr(obj, "values", obj).tobytes())


def released():
    memory = memoryview(bytearray(3))
    memory.release()
    return memory


class Device:
    """An array that says it is on a GPU."""

    __cuda_array_interface__ = ()


ERRORS = [
    (lambda: np.array([1, "a"], object), ["dtype object", ".astype"]),
    (lambda: np.array(["a"]), ["dtype <U1", "bytes"]),
    (lambda: np.array([b"ab"]), ["dtype |S2"]),
    (lambda: np.zeros(2, "datetime64[s]"), ["datetime64[s]", "np.int64"]),
    (lambda: np.zeros(2, "timedelta64[s]"), ["timedelta64[s]", "np.int64"]),
    (lambda: np.zeros(2, [("a", "f4")]), ["[('a', '<f4')]", "field"]),
    (lambda: np.zeros(2, np.longdouble), [str(np.dtype(np.longdouble)), "float64"]),
    (lambda: np.zeros(2, np.clongdouble), [str(np.dtype(np.clongdouble)), "complex128"]),
    (lambda: np.ma.masked_array([1.0, 2.0], [True, False]), ["MaskedArray", "float64", "mask", ".filled"]),
    (lambda: [1.0, 2.0], ["got list", "np.asarray"]),
    (lambda: (1.0, 2.0), ["got tuple", "np.asarray"]),
    (lambda: 3, ["got int", "np.asarray"]),
    (lambda: 3.5, ["got float", "np.asarray"]),
    (lambda: True, ["got bool", "np.asarray"]),
    (lambda: np.float32(3), ["got numpy.float32", "np.asarray"]),
    (lambda: None, ["got NoneType"]),
    (lambda: "text", ["got str"]),
    (lambda: {1: 2}, ["got dict", "np.asarray"]),
    (released, ["got memoryview"]),
    (lambda: array.array("u", "ab"), ["dtype <U1"]),
    (lambda: DLPack(None, (10, 0)), ["DLPack device type 10", "only CUDA devices are supported; copy it to the host"]),
    (lambda: DLPack(None), ["DLPack", "NoneType"]),
]


@pytest.mark.parametrize(("make", "words"), ERRORS)
@pytest.mark.parametrize("writable", [False, True])
def test_errors_say_what_and_how_to_mend(make, words, writable):
    with pytest.raises(UsageError) as caught:
        view(make(), "some buffer", writable)
    for word in ("some buffer: expected", ", got ", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("make", [Device, lambda: DLPack(None, (2, 0))])
def test_arrays_on_a_gpu_need_cupy(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "psgd.collectives.arguments.device_arrays", raising=False)
    with pytest.raises(UsageError, match=r"some buffer: expected CuPy for .* on a GPU, got .*; pip install cupy"):
        view(make(), "some buffer", True)


def test_in_place_is_no_buffer():
    from mpi4py import MPI

    with pytest.raises(UsageError, match="InPlaceType, which is not allowed here"):
        view(MPI.IN_PLACE, "recvbuf", True)


TORCH_TYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("kind", TORCH_TYPES)
def test_torch_tensors_are_the_same_memory(kind):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, kind))
    taken = view(tensor, "recvbuf", True)
    assert (taken.kind, taken.shape) == (kind, (2, 3))
    np.testing.assert_array_equal(taken.flat, np.arange(6).astype(kind))
    taken.flat[:] = distinct(6, kind)
    taken.write_back()
    assert tensor.tolist() == distinct((2, 3), kind).tolist()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_torch_layouts(kind):
    torch = pytest.importorskip("torch")
    base = torch.zeros(4, 6, dtype=getattr(torch, kind))
    tensor = base.T[1::2]  # (3, 4)
    tensor[...] = torch.arange(12).reshape(3, 4)
    taken = view(tensor, "recvbuf", True)
    bits = np.arange(12, dtype=np.float32)
    expected = bits if kind == "float32" else (bits.view(np.uint32) >> 16).astype(np.uint16)
    assert (taken.kind, taken.shape, taken.flat.dtype) == (kind, (3, 4), expected.dtype)
    np.testing.assert_array_equal(taken.flat, expected)
    taken.flat[:] = expected[::-1]
    taken.write_back()
    assert tensor.tolist() == np.arange(12)[::-1].reshape(3, 4).tolist()
    assert not base.T[::2].any()


def test_torch_memory_is_used_in_spite_of_autograd():
    torch = pytest.importorskip("torch")
    leaf = torch.nn.Parameter(torch.ones(3))
    taken = view(leaf, "recvbuf", True)
    taken.flat[:] = [1, 2, 3]
    assert leaf.tolist() == [1, 2, 3]
    assert leaf.requires_grad
    assert leaf.is_leaf
    np.testing.assert_array_equal(view(leaf * 2, "sendbuf", False).flat, [2, 4, 6])
    bits = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    np.testing.assert_array_equal(view(bits, "sendbuf", True).flat, [0x3F80, 0x3F80])


def test_torch_0d_and_empty():
    torch = pytest.importorskip("torch")
    assert view(torch.tensor(2.5), "recvbuf", True).flat.tolist() == [2.5]
    assert view(torch.zeros(0, dtype=torch.bfloat16), "recvbuf", True).flat.size == 0


def test_torch_refusals():
    torch = pytest.importorskip("torch")
    conjugated = torch.tensor([1 + 2j, 3 - 1j]).conj()
    np.testing.assert_array_equal(view(conjugated, "sendbuf", False).flat, [1 - 2j, 3 + 1j])
    for tensor, words in [
        (conjugated, ["complex64", "resolve_conj"]),
        (torch.ones(3, device="meta"), ["device meta", "only CUDA devices are supported; copy it to the host"]),
        (torch.ones(3).to_sparse(), ["torch.sparse_coo"]),
        (torch.ones(3).to(torch.float8_e5m2), ["torch.float8_e5m2"]),
        (torch.ones(3).expand(4, 3), ["overlap"]),
        (torch.ones(3, dtype=torch.bfloat16).expand(4, 3), ["overlap"]),
    ]:
        with pytest.raises(UsageError) as caught:
            view(tensor, "recvbuf", True)
        for word in ("recvbuf: expected", *words):
            assert word in str(caught.value)


def test_ml_dtypes_bfloat16_by_its_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for values in (np.arange(6).astype(ml_dtypes.bfloat16), np.arange(12).astype(ml_dtypes.bfloat16)[::2]):
        expected = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        taken = view(values, "recvbuf", True)
        assert (taken.kind, taken.flat.dtype) == ("bfloat16", np.uint16)
        np.testing.assert_array_equal(taken.flat, expected)
        taken.flat[:] = np.uint16(0x3F80) + np.arange(6, dtype=np.uint16)
        taken.write_back()
        np.testing.assert_array_equal(values.astype(np.float32), 1 + np.arange(6) / 128)
    with pytest.raises(UsageError, match="float8_e5m2"):
        view(np.ones(3, ml_dtypes.float8_e5m2), "sendbuf", False)


def test_jax_arrays_can_only_be_sent():
    jax = pytest.importorskip("jax")
    values = jax.numpy.arange(6, dtype="float32").reshape(2, 3).T
    np.testing.assert_array_equal(view(values, "sendbuf", False).flat, [0, 3, 1, 4, 2, 5])
    bits = view(values.astype("bfloat16"), "sendbuf", False)
    assert bits.kind == "bfloat16"
    np.testing.assert_array_equal(bits.flat, [0, 0x4040, 0x3F80, 0x4080, 0x4000, 0x40A0])
    with pytest.raises(UsageError, match=r"recvbuf: expected writable.*JAX array of dtype float32.*can never change"):
        view(values, "recvbuf", True)
    with pytest.raises(UsageError, match="sendbuf: expected"):
        jax.jit(lambda traced: view(traced, "sendbuf", False))(values)


def test_no_array_library_is_imported():
    code = (
        "import sys, numpy; from psgd.collectives.arguments.host_arrays import view; "
        "view(numpy.ones((3, 4)).T, 'x', True); "
        "view(bytearray(3), 'x', True); assert not {'torch', 'jax', 'ml_dtypes', 'cupy'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_the_plain_case_is_quick():
    values = distinct(7)
    assert min(timeit.repeat(lambda: view(values, "x", True), number=1000, repeat=20)) / 1000 < 5e-6
