"""All-gathers of units: everyone's parts, in place and into a buffer, and what was received."""

import contextlib

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.parallel.sharded.gathers import Gathers
from psgd.parallel.sharded.slices import Slices


@pytest.mark.ranks(3)
def test_units_are_whole_after_wait(comm):
    slices = Slices([range(7), range(7, 9), range(9, 50_000)], comm.size, comm.rank)
    expected = np.arange(slices.whole, dtype=np.float32)
    with Communicator(comm) as wrapped:
        for in_place in (False, True):
            whole = np.full(slices.whole, -1, np.float32)
            for part in slices.own:
                whole[part.start : part.stop] = expected[part.start : part.stop]
            own = [whole[part.start : part.stop] for part in slices.own]
            into = whole if in_place else np.zeros_like(whole)
            own = own if in_place else [part.copy() for part in own]
            units = [into[unit.start : unit.stop] for unit in slices.units]
            gathers = Gathers(wrapped, slices, own, units, contextlib.nullcontext)
            for number in (1, 2, 0):
                gathers.start(number)
            for number in (1, 2, 0):
                gathers.wait(number)
            gathers.wait(0)  # nothing was started since
            np.testing.assert_array_equal(into, expected)
            assert gathers.nbytes == expected.nbytes - sum(part.nbytes for part in own)
            gathers.free()
