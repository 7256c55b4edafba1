"""Places of a power of two: a bijection that keeps the order of ranks, and values that come and go."""

import numpy as np
import pytest
from harness.channel import Channel, drive
from mpi4py import MPI

from psgd.collectives.algorithms.folding import Folding
from psgd.collectives.arguments import operations


@pytest.mark.parametrize("size", range(1, 20))
def test_places_are_a_power_of_two_in_the_order_of_ranks(size):
    all_ = [Folding(rank, size) for rank in range(size)]
    places = all_[0].places
    assert places & (places - 1) == 0 and places <= size < 2 * places
    assert all_[0].bits == [1 << k for k in range(places.bit_length() - 1)]
    folded = 2 * (size - places)
    working = [rank for rank in range(size) if rank >= folded or rank % 2]
    assert [all_[rank].place for rank in working] == list(range(places))
    for rank in working:
        for bit in all_[rank].bits:
            partner = all_[rank].partner(bit)
            assert partner in working and all_[partner].place == all_[rank].place ^ bit
            assert all_[partner].partner(bit) == rank


@pytest.mark.ranks(1, 2, 3, 5)
def test_pairs_act_as_one_and_get_the_result(comm):
    folding, channel = Folding(comm.rank, comm.size), Channel(comm)
    send, recv, came = np.full(7, 10.0**comm.rank), np.zeros(7), np.zeros(7)
    kept = []

    def steps():
        kept.append((yield from folding.before(channel, send, recv, came, operations.resolve(MPI.SUM))))
        if kept[0] is not None:
            recv[:] = kept[0] + 0.5  # what the algorithm makes of it
        yield from folding.after(channel, recv)

    drive(channel, steps())
    paired = comm.rank < 2 * (comm.size - folding.places)
    first = comm.rank // 2 * 2
    wanted = 10.0**first + 10.0 ** (first + 1) if paired else 10.0**comm.rank
    assert (kept[0] is None) == (paired and comm.rank % 2 == 0)
    np.testing.assert_array_equal(recv, wanted + 0.5)
    np.testing.assert_array_equal(send, 10.0**comm.rank)
