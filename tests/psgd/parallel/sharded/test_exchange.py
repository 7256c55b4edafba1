"""Passes of an exchange: in their order only; what ranks without samples do, and what is refused."""

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", [2, 3])
def test_a_pass_by_hand(comm, stage):
    """Rank 0 computes, rank 1 has no samples: the sum is rank 0's gradient."""
    slices = Slices([range(5), range(5, 8), range(8, 17)], comm.size, comm.rank)
    whole = np.arange(17.0)
    params = whole.copy()
    if stage == 3:
        params = np.concatenate([whole[part.start : part.stop] for part in slices.own])
    with Communicator(comm) as wrapped:
        exchange = Exchange(wrapped, slices, params, stage)
        for turn in range(2):
            if comm.rank:
                exchange.pass_by()
            else:
                exchange.begin(1)
                for backward in (False, True):
                    for unit in (2, 1, 0) if backward else (0, 1, 2):
                        exchange.arrive(unit, backward)
                        part = slices.units[unit]
                        np.testing.assert_array_equal(exchange.parameters[unit], whole[part.start : part.stop])
                        if backward:
                            exchange.gradients[unit][:] = turn + whole[part.start : part.stop]
                        exchange.leave(unit, backward)
            with pytest.raises(UsageError, match="call step"):
                exchange.begin(1)
            exchange.finish()
            own = np.concatenate([whole[part.start : part.stop] for part in slices.own])
            np.testing.assert_array_equal(exchange.own, turn + own)
        exchange.pass_by(trains=False)  # as of an evaluation
        assert exchange.nbytes == (2 if stage == 2 else 7) * (whole.nbytes - own.nbytes)
        assert not exchange.announced
        with pytest.raises(UsageError, match="of a pass that has begun"):
            exchange.arrive(1)
        for unit in range(3):  # nobody has announced it: an evaluation
            exchange.arrive(unit)
            exchange.leave(unit)
        exchange.begin(1)
        assert exchange.announced
        with pytest.raises(UsageError, match="expected visit 0 of a pass"):
            exchange.arrive(1)
        exchange.arrive(0)
        exchange.leave(0)
        for unit in (1, 2):
            exchange.arrive(unit)
            exchange.leave(unit)
        for unit in (2, 1, 0):
            exchange.arrive(unit, backward=True)
            exchange.leave(unit, backward=True)
        exchange.finish()
        exchange.free()
        with pytest.raises(UsageError, match="expected stage 2 or 3"):
            Exchange(wrapped, slices, whole[:3], stage)
