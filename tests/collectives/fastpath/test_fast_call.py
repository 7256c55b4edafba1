"""What the fast path of each verb shares: methods by size, and chunks as tables."""

import numpy as np
import pytest
from harness.oracle import communicator, same_error
from mpi4py import MPI

from psgd.collectives.fastpath import fast_call
from psgd.collectives.fastpath.fast_call import FastCall
from psgd.collectives.shm import layout
from psgd.kernels.errors import ContractError


@pytest.mark.ranks(2)
def test_methods_go_by_the_limits(comm):
    with communicator(comm) as c:
        if not c._engine.local:
            pytest.skip("no shared memory here")
        call = FastCall(c._engine, [(1000, "inline"), (5000, "slots"), (np.inf, "direct")])
        assert [call.method(n) for n in (0, 1000, 1001, 5000, 5001)] == [
            layout.INLINE,
            layout.INLINE,
            layout.SLOTS,
            layout.SLOTS,
            layout.DIRECT,
        ]
        assert call.smallest == 1000
        late = FastCall(c._engine, [(200_000, "inline"), (np.inf, "direct")])  # more than travels behind descriptors
        assert [late.method(n) for n in (layout.INLINE_BYTES, layout.INLINE_BYTES + 1, 200_001)] == [
            layout.INLINE,
            layout.SLOTS,
            layout.DIRECT,
        ]
        late = FastCall(c._engine, [(200_000, "chunked"), (np.inf, "direct")])
        assert [late.method(n) for n in (layout.INLINE_BYTES, layout.INLINE_BYTES + 1)] == [
            layout.CHUNKED,
            layout.SLOTS,
        ]
        assert FastCall(c._engine, [(np.inf, "slots")]).smallest == -1


def test_tables_of_chunks():
    address, table = fast_call.equal_chunks(3, 40)
    assert np.asarray(table).reshape(3, 2).tolist() == [[0, 40], [40, 40], [80, 40]] and address
    address, table = fast_call.one_chunk(3, 1, 40)
    assert np.asarray(table).reshape(3, 2)[1].tolist() == [0, 40]
    assert np.asarray(table).reshape(3, 2)[[0, 2], 1].tolist() == [0, 0] and address


def test_what_lies_apart():
    assert fast_call.apart(0, 8, 8, 8) and fast_call.apart(8, 8, 0, 8)
    assert not fast_call.apart(0, 9, 8, 8) and not fast_call.apart(12, 1, 8, 8)


def test_what_is_plain():
    x = np.zeros(6)
    assert fast_call.plain(x, x.dtype, 6)
    for other in (x[::2], x[:5], x.astype("f4"), x.astype(">f8"), [0.0] * 6):
        assert not fast_call.plain(other, x.dtype, 6)


@pytest.mark.ranks(2, 3)
def test_words_that_are_kept_between_calls_are_those_of_this_call(comm):
    """Whatever the call before was: lengths, operations, memory that was registered meanwhile, other verbs, errors."""
    rng = np.random.default_rng(3)
    with communicator(comm) as c:
        plain = [np.zeros(60_000) for _ in range(4)]
        for _ in range(3):
            lengths = rng.choice([10, 20_000, 20_000, 20_000, 20_001, 60_000], 25)
            for n, sending, op, between in zip(
                lengths, rng.integers(0, 4, 25), rng.choice(["SUM", "MAX"], 25), rng.integers(0, 6, 25), strict=True
            ):
                send, recv = plain[sending][:n], plain[(sending + 1 + between % 3) % len(plain)][:n]
                send[:] = np.arange(n) + comm.rank
                c.Allreduce(send, recv, getattr(MPI, op))
                size, last = comm.size, comm.size - 1
                wanted = size * np.arange(n) + size * last // 2 if op == "SUM" else np.arange(n) + last
                assert np.array_equal(recv, wanted), (n, op, between)
                if between == 4:
                    c.Bcast(recv)
                elif between == 5:
                    same_error(comm, lambda: c.Allreduce(np.ones(n + comm.rank), np.ones(n + comm.rank)), ContractError)  # noqa: B023
            plain.append(c.empty(60_000))
