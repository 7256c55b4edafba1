"""All-reduce of compressed updates against decoding every payload by hand, and its checks."""

import numpy as np
import pytest
from harness.oracle import communicator, same_error

from psgd.collectives import compressed
from psgd.collectives.compressed import CompressedAllreduce
from psgd.kernels import codecs
from psgd.kernels.errors import ContractError

N = 1001


def update(rank, call):
    return np.random.default_rng([rank, call]).normal(size=N).astype(np.float32)


def codec():
    return codecs.create("threshold", N, "float32", density=0.05)


@pytest.mark.ranks(1, 2, 3)
def test_all_add_what_all_codecs_say_in_rank_order(comm):
    with communicator(comm) as c:
        reduce, out = CompressedAllreduce(c, codec()), np.ones(N, np.float32)
        reduce.compile(np.zeros(N, np.float32))
        sides, wanted = [codec() for _ in range(comm.size)], np.ones(N, np.float32)
        payload, bytes_ = np.empty(sides[0].max_nbytes(), np.uint8), 0
        for call in range(4):
            reduce(update(comm.rank, call), out)
            said = [payload[: each.encode(update(rank, call), payload)].copy() for rank, each in enumerate(sides)]
            for one in said:
                sides[0].decode_add(one, wanted)
            bytes_ += sum(one.size for one in said) - said[comm.rank].size
            assert out.tobytes() == wanted.tobytes()
        assert reduce.bytes_received >= bytes_ and (reduce.bytes_sent > 0) == (comm.size > 1)
        reduce.dense(np.zeros(N, np.float32), out)
        wanted += sum(each.residual for each in sides)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)
        assert not reduce.codec.residual.any()


@pytest.mark.ranks(1, 3)
def test_the_sum_takes_the_place_of_the_update(comm):
    with communicator(comm) as c:
        reduce, sides = CompressedAllreduce(c, codec()), [codec() for _ in range(comm.size)]
        payload = np.empty(sides[0].max_nbytes(), np.uint8)
        for call in range(3):
            mine, wanted = update(comm.rank, call), np.zeros(N, np.float32)
            reduce.replace(mine)
            for rank, each in enumerate(sides):
                sides[0].decode_add(payload[: each.encode(update(rank, call), payload)], wanted)
            assert wanted.any() and mine.tobytes() == wanted.tobytes()
        np.testing.assert_array_equal(reduce.codec.residual, sides[comm.rank].residual)


@pytest.mark.ranks(3)
def test_whose_update_is_not_finite_is_known_to_all(comm):
    with communicator(comm) as c:
        reduce, mine = CompressedAllreduce(c, codec()), update(comm.rank, 0)
        mine[7] = np.nan if comm.rank == 1 else mine[7]
        assert reduce.fine(mine).tolist() == [True, False, True]


@pytest.mark.ranks(3)
def test_arrays_that_differ_are_one_error_on_all_at_the_next_comparison(comm):
    before, compressed.MARK_EVERY = compressed.MARK_EVERY, 2
    try:
        with communicator(comm) as c:
            reduce, out = CompressedAllreduce(c, codec()), np.zeros(N, np.float32)
            reduce(update(comm.rank, 0), out)
            if comm.rank == 2:
                out[5] += 1
            reduce(update(comm.rank, 1), out)  # not compared
            same_error(comm, lambda: reduce(update(comm.rank, 2), out), ContractError, "arrays differ after 2 calls")
    finally:
        compressed.MARK_EVERY = before
