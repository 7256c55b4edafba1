"""Chunks of what is behind descriptors: sizes around a cache line for each rank, and bits as those of inline."""

import numpy as np
import pytest
from harness.channel import values
from harness.oracle import check, communicator
from mpi4py import MPI

from psgd import collectives
from psgd.collectives.arguments import operations
from psgd.collectives.shm import layout

DTYPES = ("int8", "int64", "float16", "float32", "complex64")
OPS = (MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX, collectives.MEAN)


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("verb", ["Allreduce", "Reduce"])
def test_around_its_limits(comm, verb):
    most = layout.INLINE_BYTES // 8
    with communicator(comm) as c:
        for n in (0, 1, 7, 8, 9, comm.size, 8 * comm.size - 1, 8 * comm.size + 1, 513, most - 1, most):
            check(c, verb, n, "float64", algorithm="chunked")
            assert c.last == ("chunked", "shared")


@pytest.mark.ranks(3, 7)
def test_every_operation_and_dtype_has_the_bits_of_inline(comm):
    """Sums of random floats depend on their order, so equal bits mean that ranks were combined in the same one."""
    rng = np.random.default_rng(comm.rank)
    with communicator(comm) as c:
        for dtype in DTYPES:
            for op, operation in zip(OPS, operations.ALL, strict=True):
                if not operation.accepts(dtype):
                    continue
                send = (rng.standard_normal(777) * 3).astype(dtype)
                got, wanted = np.zeros_like(send), np.ones_like(send)
                c.Allreduce(send, wanted, op, algorithm="inline")
                c.Allreduce(send, got, op, algorithm="chunked")
                assert got.tobytes() == wanted.tobytes(), (dtype, op)
                in_place = send.copy()
                c.Allreduce(MPI.IN_PLACE, in_place, op, algorithm="chunked")
                assert in_place.tobytes() == wanted.tobytes(), (dtype, op)


@pytest.mark.ranks(5)
def test_calls_follow_each_other_with_a_rank_that_is_late(comm):
    """Neither the values nor the results of a call are written over while a slow rank reads them."""
    with communicator(comm) as c:
        for n in range(40):
            late = sum(i for i in range(20_000 * (n % comm.size == comm.rank))) < 0
            assert not late
            check(c, ("Allreduce", "Reduce")[n % 3 == 2], 1 + 37 * n, "int64", "MAX" if n % 2 else "SUM", "chunked")
            if n % 4 == 0:
                check(c, "Allreduce", n, "float32", "SUM", "inline")


@pytest.mark.ranks(8)
def test_more_than_four_ranks_take_it_without_being_asked(comm):
    """By the fast path, from requests and from persistent calls; the smallest stay inline."""
    with communicator(comm) as c:
        for n, wanted in ((16, "inline"), (1024, "chunked"), (layout.INLINE_BYTES // 4, "chunked"), (20_000, "slots")):
            send, recv = values(comm.rank, n, "float32"), np.zeros(n, "float32")
            c.Allreduce(send, recv)
            expected = sum(values(rank, n, "float32") for rank in range(comm.size))
            assert c.last[0] == wanted and np.array_equal(recv, expected), n
            recv[:] = 0
            c.Iallreduce(send, recv).Wait()
            assert np.array_equal(recv, expected), n
            with c.Allreduce_init(send, recv) as request:
                for turn in range(3):
                    recv[:] = 0
                    if turn == 1:
                        request.run()
                    else:
                        request.Start()
                        request.Wait()
                    assert np.array_equal(recv, expected), (n, turn)
                assert request.last[0] == wanted
