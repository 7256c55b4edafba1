"""Exchanges of two workers' parameters by themselves: where both come to, and what goes with them."""

import time

import numpy as np
import pytest

from psgd.strategies.decentralized.gossip_exchange import LOSS, PUSHES, SAMPLES, STOP, Exchanges


def until(exchanges, done):
    limit = time.monotonic() + 20
    while not done():
        exchanges.look()
        assert time.monotonic() < limit


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 50_001])
def test_both_move_to_the_mean_and_keep_what_they_did_meanwhile(comm, dtype, n):
    mine = comm.Dup()
    params = np.full(n, 2.0 + 6.0 * comm.rank, dtype)
    exchanges = Exchanges(mine, params)
    exchanges.lines[comm.rank] = [3 + comm.rank, 10.0, 0.5, comm.rank == 0]
    assert exchanges.active == (comm.rank == 0) and exchanges.passive == [1] and exchanges.idle
    if comm.rank == 0:
        exchanges.ask(1)
        params += 0.25  # a step while the message is under way
        assert not exchanges.idle
    until(exchanges, lambda: exchanges.count == 1 and exchanges.idle)
    np.testing.assert_array_equal(params, 5.0 + (0.25 if comm.rank == 0 else 0.0))
    np.testing.assert_array_equal(exchanges.lines, [[3, 10.0, 0.5, 1], [4, 10.0, 0.5, 0]])
    assert exchanges.bytes_sent == exchanges.bytes_received == params.nbytes + exchanges.lines.nbytes
    comm.Barrier()
    exchanges.close()
    mine.Free()


@pytest.mark.ranks(3)
def test_a_passive_worker_answers_one_after_the_other(comm):
    """Workers 0 and 2 ask worker 1: the sum of all stays, and all know of each other's newest steps."""
    mine = comm.Dup()
    params = np.full(4, [0.0, 8.0, 16.0][comm.rank])
    exchanges = Exchanges(mine, params)
    exchanges.lines[comm.rank, [PUSHES, SAMPLES, LOSS, STOP]] = comm.rank + 1, 5.0, 1.0, 0
    if exchanges.active:
        exchanges.ask(1)
    wanted = 1 if exchanges.active else 2
    until(exchanges, lambda: exchanges.count == wanted and exchanges.idle)
    sums = comm.allreduce(params)
    np.testing.assert_array_equal(sums, 24.0)
    if comm.rank == 1:
        assert exchanges.lines[:, PUSHES].tolist() == [1, 2, 3]
    comm.Barrier()
    exchanges.close()
    mine.Free()
