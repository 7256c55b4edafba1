import array

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives.arguments.buffer_spec import block, counts, single, vector
from psgd.kernels.errors import UsageError

GUARD = -9


def distinct(n, dtype="float32"):
    return (np.arange(n) + 1).astype(dtype)


SINGLE = {  # what it makes of a buffer of 12 float32, and the elements that it means
    "plain": (lambda b: b, 0, 12),
    "count": (lambda b: [b, 3], 0, 3),
    "tuple": (lambda b: (b, 3), 0, 3),
    "zero": (lambda b: [b, 0], 0, 0),
    "numpy count": (lambda b: [b, np.int64(3)], 0, 3),
    "none": (lambda b: [b, None], 0, 12),
    "type": (lambda b: [b, MPI.FLOAT], 0, 12),
    "code": (lambda b: [b, "f"], 0, 12),
    "sized code": (lambda b: [b, "f4"], 0, 12),
    "count and type": (lambda b: [b, 5, MPI.FLOAT], 0, 5),
    "no count and type": (lambda b: [b, None, MPI.FLOAT], 0, 12),
    "pair": (lambda b: [b, (3, 4)], 4, 3),
    "pair as a list": (lambda b: [b, [3, 4]], 4, 3),
    "pair and type": (lambda b: [b, (3, 4), "f"], 4, 3),
    "pair without count": (lambda b: [b, (None, 4)], 4, 8),
    "four": (lambda b: [b, 3, 4, MPI.FLOAT], 4, 3),
    "four without displacement": (lambda b: [b, 3, None, MPI.FLOAT], 0, 3),
    "array.array": (lambda b: [memoryview(b), 3], 0, 3),
    "raw bytes": (lambda b: [memoryview(b).cast("B"), 3, MPI.FLOAT], 0, 3),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("form", SINGLE)
def test_single_means_what_it_means_to_mpi(comm, form):
    make, start, n = SINGLE[form]
    mine = distinct(12) + 100 * comm.rank
    theirs = np.full(12, GUARD, np.float32)
    comm.Allreduce(make(mine), make(theirs))
    total = sum(distinct(12) + 100 * rank for rank in range(comm.size))
    expected = np.full(12, GUARD, np.float32)
    expected[start : start + n] = total[start : start + n]
    np.testing.assert_array_equal(theirs, expected)  # so far: the table is right

    sent = single(make(mine), "sendbuf", False)
    np.testing.assert_array_equal(sent.flat, mine[start : start + n])
    assert sent.kind == "float32"
    ours = np.full(12, GUARD, np.float32)
    received = single(make(ours), "recvbuf", True)
    assert received.flat.shape == (n,)
    received.flat[:] = total[start : start + n]
    received.write_back()
    np.testing.assert_array_equal(ours, expected)


BLOCK = {  # of a buffer of 12; for 3 ranks: where the blocks begin, elements of one
    "plain": (lambda b: b, 0, 4),
    "count": (lambda b: [b, 3], 0, 3),
    "type": (lambda b: [b, MPI.FLOAT], 0, 4),
    "count and type": (lambda b: [b, 2, "f"], 0, 2),
    "pair": (lambda b: [b, (3, 2)], 2, 3),
    "pair as a list": (lambda b: [b, [3, 2]], 2, 3),
    "four": (lambda b: [b, 1, 9, MPI.FLOAT], 9, 1),
    "zero": (lambda b: [b, 0], 0, 0),
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("form", BLOCK)
def test_block_means_what_it_means_to_mpi(comm, form):
    make, start, n = BLOCK[form]
    theirs, ours, expected = (np.full(12, GUARD, np.float32) for _ in range(3))
    comm.Allgather(distinct(n) + 100 * comm.rank, make(theirs))
    for rank in range(3):
        expected[start + rank * n : start + (rank + 1) * n] = distinct(n) + 100 * rank
    np.testing.assert_array_equal(theirs, expected)

    taken, elements = block(make(ours), "recvbuf", 3, True)
    assert (elements, taken.flat.size) == (n, 3 * n)
    taken.flat[:] = np.concatenate([distinct(n) + 100 * rank for rank in range(3)])
    taken.write_back()
    np.testing.assert_array_equal(ours, expected)

    mine, part = distinct(12) + 100 * comm.rank, np.full(n, GUARD, np.float32)
    comm.Reduce_scatter_block(make(mine), part)
    total = sum(block(make(distinct(12) + 100 * rank), "sendbuf", 3, False)[0].flat for rank in range(3))
    np.testing.assert_array_equal(part, total.reshape(3, n)[comm.rank])
    comm.Reduce_scatter_block(MPI.IN_PLACE, make(mine))  # the result lies at the start of the blocks
    np.testing.assert_array_equal(block(make(mine), "recvbuf", 3, True)[0].flat[:n], part)


VECTOR = {  # of a buffer of 14; for 3 ranks: counts, displacements
    "plain": (lambda b: b, [5, 5, 4], [0, 5, 10]),
    "plain, short": (lambda b: b[:13], [5, 4, 4], [0, 5, 9]),
    "none": (lambda b: [b, None], [5, 5, 4], [0, 5, 10]),
    "type": (lambda b: [b, MPI.FLOAT], [5, 5, 4], [0, 5, 10]),
    "code": (lambda b: [b, "f"], [5, 5, 4], [0, 5, 10]),
    "counts": (lambda b: [b, [1, 2, 3]], [1, 2, 3], [0, 1, 3]),
    "counts in an array": (lambda b: [b, np.array([1, 0, 3])], [1, 0, 3], [0, 1, 1]),
    "counts in an array.array": (lambda b: [b, array.array("i", [1, 2, 3])], [1, 2, 3], [0, 1, 3]),
    "counts and type": (lambda b: [b, [1, 2, 3], MPI.FLOAT], [1, 2, 3], [0, 1, 3]),
    "pair": (lambda b: [b, ([1, 2, 3], [2, 4, 8])], [1, 2, 3], [2, 4, 8]),
    "backward": (lambda b: [b, ([1, 2, 3], [13, 10, 0])], [1, 2, 3], [13, 10, 0]),
    "pair of tuples": (lambda b: [b, ((1, 2, 3), (2, 4, 8))], [1, 2, 3], [2, 4, 8]),
    "pair and type": (lambda b: [b, ([1, 2, 3], [2, 4, 8]), "f"], [1, 2, 3], [2, 4, 8]),
    "pair without displacements": (lambda b: [b, ([1, 2, 3], None)], [1, 2, 3], [0, 1, 3]),
    "four": (lambda b: [b, [1, 2, 3], [2, 4, 8], MPI.FLOAT], [1, 2, 3], [2, 4, 8]),
    "four without displacements": (lambda b: [b, [1, 2, 3], None, MPI.FLOAT], [1, 2, 3], [0, 1, 3]),
    "four without counts": (lambda b: [b, None, [9, 0, 5], MPI.FLOAT], [5, 5, 4], [9, 0, 5]),
    "one count": (lambda b: [b, 2], [2, 2, 2], [0, 2, 4]),
    "pair of numbers": (lambda b: [b, (2, 4)], [2, 2, 2], [0, 4, 8]),
    "counts, equal distances": (lambda b: [b, ([1, 2, 3], 4)], [1, 2, 3], [0, 4, 8]),
    "four numbers": (lambda b: [b, 2, 4, MPI.FLOAT], [2, 2, 2], [0, 4, 8]),
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("form", VECTOR)
def test_vector_means_what_it_means_to_mpi(comm, form):
    make, lengths, starts = VECTOR[form]
    theirs, ours, expected = (np.full(14, GUARD, np.float32) for _ in range(3))
    comm.Allgatherv(distinct(lengths[comm.rank]) + 100 * comm.rank, make(theirs))
    for rank in range(3):
        expected[starts[rank] : starts[rank] + lengths[rank]] = distinct(lengths[rank]) + 100 * rank
    np.testing.assert_array_equal(theirs, expected)

    taken, got_counts, got_starts = vector(make(ours), "recvbuf", 3, True)
    assert (got_counts, got_starts) == (lengths, starts)
    assert all(type(number) is int for number in got_counts + got_starts)
    for rank in range(3):
        taken.flat[starts[rank] : starts[rank] + lengths[rank]] = distinct(lengths[rank]) + 100 * rank
    taken.write_back()
    np.testing.assert_array_equal(ours, expected)


def test_a_plain_buffer_is_not_copied():
    values = distinct(12)
    for taken in (
        single(values, "x", True),
        single([values, (3, 0)], "x", True),
        single([values, MPI.FLOAT], "x", True),
        single([values, MPI.INT], "x", True),
        block(values, "x", 3, True)[0],
        vector([values, [1, 2, 3]], "x", 3, True)[0],
    ):
        assert taken.flat.ctypes.data == values.ctypes.data


def test_gaps_of_a_copy_are_not_written_back():
    for kind in ("strided", "swapped"):
        values = distinct(24)[::2] if kind == "strided" else distinct(12, ">f4")
        expected = values.copy()
        taken, _, _ = vector([values, ([1, 0, 3], [2, 9, 5])], "recvbuf", 3, True)
        np.testing.assert_array_equal(taken.flat, expected)
        taken.flat[:] = -1 - np.arange(12)
        values[0] = expected[0] = 77  # changed by the caller while the collective runs
        expected[[2, 5, 6, 7]] = [-3, -6, -7, -8]
        taken.write_back()
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    ("datatype", "kind"),
    [
        (MPI.FLOAT, "float32"),
        (MPI.DOUBLE, "float64"),
        (MPI.REAL8, "float64"),
        (MPI.INT, "int32"),
        (MPI.INT8_T, "int8"),
        (MPI.INT16_T, "int16"),
        (MPI.INT32_T, "int32"),
        (MPI.INT64_T, "int64"),
        (MPI.LONG_LONG, "int64"),
        (MPI.UINT16_T, "uint16"),
        (MPI.UINT64_T, "uint64"),
        (MPI.BYTE, "uint8"),
        (MPI.CHAR, "uint8"),
        (MPI.C_BOOL, "bool"),
        (MPI.C_FLOAT_COMPLEX, "complex64"),
        (MPI.C_DOUBLE_COMPLEX, "complex128"),
        (MPI.AINT, "int64"),
        ("d", "float64"),
        ("i2", "int16"),
        ("B", "uint8"),
        ("?", "bool"),
        ("e", "float16"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_datatypes_reinterpret_raw_memory(datatype, kind):
    dtype = np.dtype("uint16" if kind == "bfloat16" else kind)
    n = 48 // dtype.itemsize
    for spec in (lambda b: [b, datatype], lambda b: [b, n, datatype]):
        memory = bytearray(range(48)) if kind != "bool" else bytearray(b"\0\1" * 24)
        taken = single(spec(memory), "recvbuf", True)
        assert (taken.kind, taken.flat.dtype, taken.shape) == (kind, dtype, (n,))
        np.testing.assert_array_equal(taken.flat.view(np.uint8), np.frombuffer(bytes(memory), np.uint8))
        taken.flat[:] = taken.flat[::-1].copy()
        expected = taken.flat.tobytes()
        taken.write_back()
        assert bytes(memory) == expected


def test_reinterpreting_what_is_unaligned_or_strided():
    memory = bytearray(14)
    taken = single([memoryview(memory)[1:13], 2, MPI.FLOAT], "recvbuf", True)
    assert taken.flat.flags.aligned
    taken.flat[:] = [1.5, -2]
    taken.write_back()
    assert bytes(memory) == b"\0" + np.array([1.5, -2], np.float32).tobytes() + bytes(5)

    values = distinct(12).reshape(3, 4).T
    taken = single([values, (4, 8), MPI.BYTE], "recvbuf", True)  # the third element, logically
    assert taken.flat.tobytes() == values.ravel()[2:3].tobytes()
    taken.flat[:] = np.array([-5], np.float32).view(np.uint8)
    taken.write_back()
    expected = distinct(12).reshape(3, 4).T.copy()
    expected.flat[2] = -5
    np.testing.assert_array_equal(values, expected)


def test_bytes_as_floats_can_only_be_sent():
    sent = single([distinct(3).tobytes(), MPI.FLOAT], "sendbuf", False)
    np.testing.assert_array_equal(sent.flat, [1, 2, 3])
    with pytest.raises(UsageError, match="recvbuf: expected writable"):
        single([bytes(12), MPI.FLOAT], "recvbuf", True)


def test_no_buffer_is_no_element():
    for spec in ([None, MPI.FLOAT], [None, 0, MPI.FLOAT], [None, (0, 0), "f"]):
        taken = single(spec, "sendbuf", False)
        assert (taken.flat.size, taken.kind) == (0, "float32")
    assert vector([None, [0, 0], "d"], "recvbuf", 2, True)[1:] == ([0, 0], [0, 0])
    assert block([None, 0, "d"], "recvbuf", 2, True)[1] == 0


def test_counts():
    for given in (
        [1, 2, 3],
        (1, 2, 3),
        np.array([1, 2, 3]),
        np.array([1, 2, 3], np.int16),
        array.array("q", [1, 2, 3]),
    ):
        assert counts(given, "recvcounts", 3) == [1, 2, 3]
    for given in ([1, 2], [1, 2, 3, 4], [1, -2, 3], [1.0, 2.0, 3.0], np.ones(3), np.ones((3, 1), int), 3, None, "123"):
        with pytest.raises(UsageError, match=r"recvcounts: expected (3 counts|a list of counts)"):
            counts(given, "recvcounts", 3)


DERIVED = MPI.FLOAT.Create_contiguous(2)
B = distinct(12)
ERRORS = [
    (single, [], ["2 to 4 items", "list of 0"]),
    (single, [B], ["2 to 4 items", "list of 1"]),
    (single, [B, 1, 2, MPI.FLOAT, 5], ["2 to 4 items", "list of 5"]),
    (single, [1.0, 2.0, 3.0], ["the first a float", "np.asarray"]),
    (single, (np.float32(1), np.float32(2)), ["the first a float32", "np.asarray"]),
    (single, [B, 13], ["12 elements of float32", "13 elements from 0"]),
    (single, [B, (8, 5)], ["12 elements of float32", "8 elements from 5"]),
    (single, [B, (None, 13)], ["12 elements of float32", "from 13"]),
    (single, [B, -1], ["count", "-1"]),
    (single, [B, (3, -1)], ["displacement", "-1"]),
    (single, [B, 3.0], ["count", "3.0"]),
    (single, [B, np.array([3, 2])], ["count", "array([3, 2])"]),
    (single, [B, (3,)], ["pair", "(3,)"]),
    (single, [B, [1, 2, 3]], ["pair", "[1, 2, 3]"]),
    (single, [B, "zz"], ["basic MPI datatype", "'zz'"]),
    (single, [B, MPI.FLOAT, 3], ["basic MPI datatype", "got 3"]),
    (single, [B, 3, B], ["basic MPI datatype", "array"]),
    (single, [B, DERIVED], ["basic MPI datatype", "derived"]),
    (single, [B, MPI.FLOAT_INT], ["basic MPI datatype", "MPI_FLOAT_INT"]),
    (single, [B, MPI.LONG_DOUBLE], ["basic MPI datatype", "MPI_LONG_DOUBLE"]),
    (single, [B, MPI.DATATYPE_NULL], ["basic MPI datatype"]),
    (single, [bytearray(7), MPI.FLOAT], ["float32", "7 bytes", "multiple of 4"]),
    (single, [None, 3, MPI.FLOAT], ["0 elements of float32", "3 elements"]),
    (single, [None, 0], ["NoneType"]),
    (single, None, ["NoneType"]),
    (single, MPI.IN_PLACE, ["InPlaceType"]),
    (single, [MPI.BOTTOM, 3, MPI.FLOAT], ["BottomType"]),
    (block, distinct(13), ["multiple of 3", "got 13 of float32"]),
    (block, [B, (None, 2)], ["multiple of 3", "got 10 of float32"]),
    (block, [B, 5], ["12 elements of float32", "15 elements from 0"]),
    (vector, [B, [1, 2]], ["3 counts", "got 2"]),
    (vector, [B, [1, 2, 3, 4]], ["3 counts", "got 4"]),
    (vector, [B, (1, 2, 3)], ["pair", "(1, 2, 3)", "in a list"]),
    (vector, [B, ([1, 2, 3], [0, 1])], ["3 displacements", "got 2"]),
    (vector, [B, [1.0, 2.0, 3.0]], ["counts", "1.0"]),
    (vector, [B, [[1, 2, 3], [0, 4, 8]]], ["3 counts", "got 2"]),
    (vector, [B, ([1, 2, 3], [0, 4, 10])], ["12 elements of float32", "end at 13"]),
    (vector, [B, ([1, 2, 3], [-1, 4, 8])], ["displacements", "-1"]),
    (vector, [B, ([1, 2, 3], [5, 4, 8])], ["do not overlap", "[5, 4, 8]"]),
    (vector, [B, 5], ["12 elements of float32", "end at 15"]),
    (vector, [B, "zz"], ["basic MPI datatype", "'zz'"]),
]


@pytest.mark.parametrize(("parse", "spec", "words"), ERRORS)
def test_errors_say_what_and_where(parse, spec, words):
    sizes = () if parse is single else (3,)
    with pytest.raises(UsageError) as caught:
        parse(spec, "recvbuf", *sizes, writable=True)
    for word in ("recvbuf: expected", "got ", *words):
        assert word in str(caught.value)


def test_blocks_that_are_only_read_may_overlap():
    assert vector([B, ([2, 2, 2], [0, 1, 0])], "sendbuf", 3, False)[2] == [0, 1, 0]


def test_torch_tensors_in_specs():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(6, dtype=torch.bfloat16)
    taken = single([tensor, (2, 1)], "recvbuf", True)
    assert taken.kind == "bfloat16"
    taken.flat[:] = [0x3F80, 0x4000]
    assert tensor.tolist() == [0, 1, 2, 0, 0, 0]
    assert single([tensor, 3, MPI.UINT16_T], "sendbuf", False).kind == "uint16"
