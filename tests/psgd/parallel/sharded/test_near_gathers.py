"""Ranks of a node read units where they lie: after a change, once all have come to the barrier."""

import os
import time

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.kernels.errors import PeerLostError
from psgd.parallel.sharded.near_gathers import NearGathers, possible
from psgd.parallel.sharded.slices import Slices

UNITS = [range(7), range(7, 9), range(9, 50_000)]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("in_place", [True, False])
def test_units_are_whole_after_each_change(comm, in_place):
    slices = Slices(UNITS, comm.size, comm.rank)
    with Communicator(comm) as wrapped:
        if not possible(wrapped, np.zeros(1)):
            return  # the system does not allow it
        whole = np.full(slices.whole, -1, np.float32)
        own = [whole[part.start : part.stop] for part in slices.own]
        own = own if in_place else [part.copy() for part in own]
        gathers = NearGathers(wrapped, slices, own, [whole[unit.start : unit.stop] for unit in UNITS])
        for turn in range(3):
            gathers.changed()
            comm.Barrier()  # as all have read what they gathered before
            time.sleep(0.01 * ((comm.rank + turn) % 3))
            expected = np.arange(slices.whole, dtype=np.float32) + turn
            for part, values in zip(slices.own, own, strict=True):
                values[:] = expected[part.start : part.stop]
            for unit in (0, 1, 2):
                gathers.start(unit)
            for unit in (2, 1, 0):
                gathers.wait(unit)
            np.testing.assert_array_equal(whole, expected)
            comm.Barrier()
        whole[:] = -1
        gathers.wait(0)  # nothing was started
        assert (whole == -1).all()
        assert gathers.nbytes == 3 * (whole.nbytes - sum(part.nbytes for part in own))
        gathers.free()


@pytest.mark.ranks(2)
def test_memory_that_cannot_be_read_is_an_error(comm):
    slices = Slices(UNITS, comm.size, comm.rank)
    with Communicator(comm) as wrapped:
        if not possible(wrapped, np.zeros(1)):
            return
        whole = np.zeros(slices.whole, np.float32)
        own = [np.zeros(len(part), np.float32) for part in slices.own]
        gathers = NearGathers(wrapped, slices, own, [whole[unit.start : unit.stop] for unit in UNITS])
        gathers._reads[0] = [(process, 64, to, nbytes) for process, _, to, nbytes in gathers._reads[0]]
        gathers.start(0)
        with pytest.raises(PeerLostError, match="cannot be read"):
            gathers.wait(0)


@pytest.mark.ranks(2)
def test_without_shared_memory_it_is_not_possible(comm):
    os.environ["PSGD_SHARED"] = "0"
    try:
        with Communicator(comm) as wrapped:
            assert not possible(wrapped, np.zeros(1))
    finally:
        del os.environ["PSGD_SHARED"]
