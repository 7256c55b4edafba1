"""What callers pass as buffers: any layout, by logical index, read-only or wrong, and other libraries' arrays."""

import array
import contextlib
import sys
from functools import partial

import numpy as np
import pytest
from harness.channel import values
from harness.oracle import communicator, same_error
from mpi4py import MPI

from psgd.kernels.errors import UsageError

WAYS = pytest.mark.parametrize("shared", ["1", "0"])
SHAPE = (6, 4)


def layouts(dtype):
    """Arrays of one shape, each of another layout, in memory that is 9 all over."""

    def nines(*shape):
        return np.full(shape, 9, dtype)

    yield "plain", nines(6, 4)
    yield "Fortran", np.asfortranarray(nines(6, 4))
    yield "strided", nines(12, 8)[::2, ::2]
    yield "transposed", nines(4, 6).T
    yield "reversed", nines(6, 4)[::-1, ::-1]
    yield "block", nines(9, 7)[2:8, 1:5]
    yield "other order of bytes", nines(6, 4).astype(np.dtype(dtype).newbyteorder())
    yield "unaligned", np.frombuffer(bytearray(24 * np.dtype(dtype).itemsize + 1), dtype, 24, 1).reshape(6, 4)


def filled(target, source):
    target[...] = source
    return target


def outside(part):
    """The bytes of the whole memory of a view, with its own elements set to 0."""
    copy = part.copy()
    part[...] = 0
    owner = part if part.base is None else part.base
    rest = bytes(owner)
    part[...] = copy
    return rest


@WAYS
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128", "float16"])
def test_every_layout_beside_every_other(comm, shared, dtype):
    """Each rank has another layout, for what it sends and for what it receives."""
    count = len(list(layouts(dtype)))
    everyone = [values(rank, 24, "int64").reshape(SHAPE) % 50 for rank in range(comm.size)]
    with communicator(comm, PSGD_SHARED=shared) as c:
        for turn in range(count):
            name, send = list(layouts(dtype))[(turn + comm.rank) % count]
            into, recv = list(layouts(dtype))[(turn + 3 * comm.rank + 1) % count]
            filled(send, everyone[comm.rank])
            before, around, beside = bytes(send.copy()), outside(send), outside(recv)
            c.Allreduce(send, recv)
            assert np.array_equal(recv, sum(everyone)), (name, into)
            assert bytes(send.copy()) == before and outside(send) == around and outside(recv) == beside, (name, into)
            c.Allreduce(MPI.IN_PLACE, filled(recv, everyone[comm.rank]), "prod" if dtype == "complex128" else MPI.MAX)
            wanted = np.prod(everyone, axis=0) if dtype == "complex128" else np.max(everyone, axis=0)
            assert np.array_equal(recv, wanted) and outside(recv) == beside, into
            root = turn % comm.size
            c.Bcast(send, root)
            assert np.array_equal(send, everyone[root]) and outside(send) == around, name


@WAYS
@pytest.mark.ranks(2, 3)
def test_layouts_of_gathered_and_scattered_arrays(comm, shared):
    size, rank = comm.size, comm.rank
    everyone = [values(r, 24 * size, "float64") for r in range(size)]
    total = sum(everyone)
    with communicator(comm, PSGD_SHARED=shared) as c:
        for turn, (name, mine) in enumerate(layouts("float64")):
            blocks = np.full((size, 6, 4), 9.0)
            wide = blocks if (turn + rank) % 2 else np.asfortranarray(blocks)
            c.Allgather(filled(mine, everyone[rank][:24].reshape(SHAPE)), wide)
            assert np.array_equal(wide, [each[:24].reshape(SHAPE) for each in everyone]), name
            whole = filled(wide, everyone[rank].reshape(size, 6, 4))
            c.Reduce_scatter_block(whole, mine)
            assert np.array_equal(mine, total.reshape(size, 6, 4)[rank]), name
            c.Reduce(filled(mine, everyone[rank][:24].reshape(SHAPE)), mine.copy(), root=size - 1)
            recv = np.asfortranarray(np.zeros(SHAPE))
            c.Reduce(mine, recv, root=0)
            assert np.array_equal(recv, total[:24].reshape(SHAPE)) if rank == 0 else not recv.any(), name
            strided = np.full(48 * size, 9.0)
            counts = [24 - r for r in range(size)]
            c.Allgatherv(mine.ravel()[: counts[rank]], [strided[::2], counts])
            wanted = np.concatenate([each[:n] for each, n in zip(everyone, counts, strict=True)])
            assert np.array_equal(strided[::2][: sum(counts)], wanted) and (strided[1::2] == 9).all(), name
            assert (strided[::2][sum(counts) :] == 9).all(), name


@pytest.mark.ranks(2)
def test_layouts_of_non_blocking_calls(comm):
    with communicator(comm) as c:
        pairs = [(filled(a, comm.rank + 1), b) for (_, a), (_, b) in zip(*[list(layouts("float32"))] * 2, strict=True)]
        results = [np.asfortranarray(np.zeros(SHAPE, "float32")) for _ in pairs]
        requests = [c.Iallreduce(a, out) for (a, _), out in zip(pairs, results, strict=True)]
        for request in requests:
            request.Wait()
        assert all((out == 3).all() for out in results)


@WAYS
@pytest.mark.ranks(3)
def test_what_is_sent_may_be_read_only(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        mine, recv = np.full(700, comm.rank + 1.0), np.zeros(700)
        mine.flags.writeable = False
        c.Allreduce(mine, recv)
        assert (recv == 6).all()
        c.Allreduce(np.broadcast_to(np.float64(comm.rank), (700,)), recv)
        assert (recv == 3).all()
        data = bytes(range(100)) if comm.rank == 1 else bytearray(100)
        c.Bcast(data, 1)  # the root's may be bytes
        assert bytes(data) == bytes(range(100))


@WAYS
@pytest.mark.ranks(2)
def test_errors_name_argument_and_dtype(comm, shared):
    records = np.zeros(2, [("a", "f4"), ("b", "f4")])
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    wrong = {
        "object": (np.array([1, None], object), "object"),
        "masked": (np.ma.array([1.0, 2.0], mask=[0, 1]), "mask"),
        "record": (records, "view"),
        "dates": (np.zeros(2, "M8[s]"), "int64"),
        "text": (np.array(["a", "b"]), "<U1"),
        "long double": (np.zeros(2, np.longdouble), "float64"),
    }
    for name, (bad, word) in wrong.items():
        with usable(comm, shared) as c:
            said = same_error(comm, partial(c.Allreduce, bad, np.zeros(2)), UsageError, "sendbuf", word)
            assert said.startswith("Allreduce: sendbuf: expected"), (name, said)
        with usable(comm, shared) as c:
            said = same_error(comm, partial(c.Allreduce, frozen, bad), UsageError, "recvbuf", word)
            assert said.startswith("Allreduce: recvbuf: expected"), (name, said)
    for bad in ([1.0, 2.0], (1.0, 2.0, 3.0), "text", 3, None, 2.5):
        with usable(comm, shared) as c:
            same_error(comm, partial(c.Allreduce, bad, np.zeros(2)), UsageError, "sendbuf", "asarray")
    with usable(comm, shared) as c:
        same_error(comm, partial(c.Allreduce, np.zeros(2), frozen), UsageError, "recvbuf", "read-only", "float64")


@contextlib.contextmanager
def usable(comm, shared):
    """A communicator; over messages an error makes it unusable, and it is not freed."""
    c = communicator(comm, PSGD_SHARED=shared).__enter__()
    yield c
    if shared == "1":
        c.free()


@WAYS
@pytest.mark.ranks(2, 3)
def test_buffers_of_pythons_own(comm, shared):
    size, rank = comm.size, comm.rank
    with communicator(comm, PSGD_SHARED=shared) as c:
        mine, recv = array.array("d", [rank + 1.0, 10.0 * rank]), array.array("d", [0, 0])
        c.Allreduce(mine, recv)
        assert recv.tolist() == [size * (size + 1) / 2, 10 * size * (size - 1) / 2]
        raw = bytearray([rank] * 5)
        c.Allreduce(MPI.IN_PLACE, raw, MPI.MAX)
        assert raw == bytes([size - 1] * 5)
        memory = memoryview(bytearray(8 * size)).cast("i")
        c.Allgather(np.array([rank, rank + 7], np.int32), memory)
        assert memory.tolist() == [n for r in range(size) for n in (r, r + 7)]
        c.Bcast(memoryview(raw)[1:3], 0)
        point = np.array(rank + 1.0)  # 0-d
        c.Allreduce(MPI.IN_PLACE, point)
        assert point == size * (size + 1) / 2


SPECS = {
    "count": (lambda a: [a, 5], 0, 5),
    "type": (lambda a: [a, MPI.DOUBLE], 0, 24),
    "code": (lambda a: [a, "d"], 0, 24),
    "count and type": (lambda a: [a, 5, MPI.DOUBLE], 0, 5),
    "pair": (lambda a: [a, (5, 3)], 3, 8),
    "pair and type": (lambda a: [a, (5, 3), MPI.DOUBLE], 3, 8),
    "four": (lambda a: [a, 5, 3, MPI.DOUBLE], 3, 8),
    "tuple": (lambda a: (a, 5, MPI.DOUBLE), 0, 5),
    "bytes": (lambda a: [a.view(np.uint8), MPI.DOUBLE], 0, 24),
    "bytes and count": (lambda a: [a.view(np.uint8), 5, MPI.DOUBLE], 0, 5),
}


@WAYS
@pytest.mark.ranks(2, 3)
def test_specifications_mean_what_they_mean_to_mpi4py(comm, shared):
    names = list(SPECS)
    with communicator(comm, PSGD_SHARED=shared) as c:
        for i, name in enumerate(names):
            make, start, stop = SPECS[name]
            mine = values(comm.rank, 24, "float64")
            ours, theirs = np.full(24, 9.0), np.full(24, 9.0)
            c.Allreduce(make(mine), make(ours))
            comm.Allreduce(make(mine), make(theirs))
            assert np.array_equal(ours, theirs) and (ours[:start] == 9).all() and (ours[stop:] == 9).all(), name
            if stop - start == 5 and comm.rank % 2:  # the other ranks say the same in another form
                make = SPECS["four" if i % 2 else "bytes and count"][0]
            ours, theirs = mine.copy(), mine.copy()
            c.Bcast(make(ours), comm.size - 1)
            comm.Bcast(make(theirs), comm.size - 1)
            assert np.array_equal(ours, theirs), name
        ours, theirs = np.full(7 * comm.size, 9.0), np.full(7 * comm.size, 9.0)
        c.Allgather([mine, 5], [ours, 5])
        comm.Allgather([mine, 5], [theirs, 5])
        assert np.array_equal(ours, theirs)
        counts, places = [r + 1 for r in range(comm.size)], [6 * (comm.size - 1 - r) for r in range(comm.size)]
        for spec in (
            lambda b: [b, counts, places, MPI.DOUBLE],
            lambda b: [b, (counts, places)],
            lambda b: [b, np.array(counts)],
        ):
            ours, theirs = np.full(7 * comm.size, 9.0), np.full(7 * comm.size, 9.0)
            c.Allgatherv([mine, comm.rank + 1], spec(ours))
            comm.Allgatherv([mine, comm.rank + 1], spec(theirs))
            assert np.array_equal(ours, theirs)


@WAYS
@pytest.mark.ranks(2, 3)
def test_pytorch_tensors(comm, shared):
    torch = sys.modules.get("torch") or pytest.importorskip("torch")
    size, rank = comm.size, comm.rank
    with communicator(comm, PSGD_SHARED=shared) as c:
        for dtype in (torch.float32, torch.float64, torch.int64, torch.float16, torch.bfloat16, torch.complex64):
            mine = (torch.arange(1000) % 60 + rank).to(dtype)
            recv = torch.zeros(1000, dtype=dtype)
            c.Allreduce(mine, recv)
            wanted = (size * (torch.arange(1000) % 60) + size * (size - 1) // 2).to(dtype)
            assert torch.equal(recv, wanted), dtype
            assert torch.equal(mine, (torch.arange(1000) % 60 + rank).to(dtype))
        wide = (torch.arange(24.0).reshape(4, 6) + rank).T
        c.Allreduce(MPI.IN_PLACE, wide)
        assert torch.equal(wide, size * torch.arange(24.0).reshape(4, 6).T + size * (size - 1) // 2)
        weights = torch.full((30,), float(rank + 1), requires_grad=True)
        (weights * weights).sum().backward()
        c.Allreduce(MPI.IN_PLACE, weights.grad, "mean")
        assert torch.equal(weights.grad, torch.full((30,), float(size + 1)))
        c.Bcast(weights, size - 1)
        assert torch.equal(weights.detach(), torch.full((30,), float(size))) and weights.requires_grad
        recv = np.zeros(30, np.float32)
        c.Allreduce(weights, recv)  # one library's to another's
        assert (recv == size * size).all()


@WAYS
@pytest.mark.ranks(2)
def test_sixteen_bit_floats_are_summed_in_float32(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        recv = np.zeros(3, np.float16)
        c.Allreduce(np.full(3, 40_000, np.float16), recv, "mean")
        assert (recv == 40_000).all()  # the sum is too large for float16
        c.Allreduce(np.full(3, 40_000, np.float16), recv)
        assert np.isinf(recv).all()
        c.Allreduce(
            np.array([2048, 1, -2048], np.float16) if comm.rank == 0 else np.array([1, 2048, 3], np.float16), recv
        )
        assert recv.tolist() == [2048, 2048, -2045]  # 2049 to even


@WAYS
@pytest.mark.ranks(5)
def test_sums_of_sixteen_bits_round_once(comm, shared):
    """2048 + 1 + 1 + 1 + 1: in float16 each addition would be lost."""
    mine = np.full(100, 2048 if comm.rank == 0 else 1, np.float16)
    block = np.zeros(20, np.float16)
    with communicator(comm, PSGD_SHARED=shared) as c:
        recv = np.zeros(100, np.float16)
        for algorithm in (None, "ring", "recursive_doubling", "rabenseifner", "native"):
            c.Allreduce(mine, recv, algorithm=algorithm)
            assert (recv == 2052).all(), algorithm
        c.Reduce_scatter_block(mine, block)
        assert (block == 2052).all()
        c.Reduce(mine, recv, root=3)
        c.Reduce_scatter(mine, block, [20] * 5)
        assert (recv == 2052).all() and (block == 2052).all()
        everyone = np.zeros(100, np.float16)
        c.Allgather(mine[:20], everyone)
        assert (everyone[:20] == 2048).all() and (everyone[20:] == 1).all()


@WAYS
@pytest.mark.ranks(2)
def test_bfloat16_of_ml_dtypes(comm, shared):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with communicator(comm, PSGD_SHARED=shared) as c:
        mine, recv = np.full(70, 256 if comm.rank == 0 else 2, ml_dtypes.bfloat16), np.zeros(70, ml_dtypes.bfloat16)
        c.Allreduce(mine, recv)
        assert (recv.astype(np.float32) == 258).all()
        c.Allreduce(mine, recv, MPI.MAX)
        assert (recv.astype(np.float32) == 256).all()
        c.Allreduce(np.full(70, 3e38, ml_dtypes.bfloat16), recv, "mean")
        strided = np.zeros((70, 2), ml_dtypes.bfloat16)
        c.Allreduce(mine, strided[:, 1])
        assert (strided[:, 1].astype(np.float32) == 258).all() and (strided[:, 0].astype(np.float32) == 0).all()


@WAYS
@pytest.mark.ranks(2)
def test_numpys_error_settings_of_the_program_do_not_matter(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c, np.errstate(all="raise"):
        recv = np.zeros(3, np.float16)
        c.Allreduce(np.array([40_000, 6e-8, 3e-8 * 2], np.float16), recv)
        assert np.isinf(recv[0]) and recv[1] > 0
        wide = np.zeros(2, np.float32)
        c.Allreduce(np.array([3e38, 1e-45], np.float32), wide)
        assert np.isinf(wide[0]) and wide[1] > 0
        c.Allreduce(np.array([1e-45, 3e-38], np.float32), wide, "mean")
