"""Turns by hand: in their order only, with a copy that has fewer microbatches, and one that has none."""

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.parallel.sharded.pieces.piece_exchange import PieceExchange
from psgd.parallel.sharded.slices import Slices

FORWARD, BACKWARD = [(0, False), (1, False), (2, False)], [(2, True), (1, True), (0, True)]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", [2, 3])
def test_batches_by_hand(comm, stage):
    slices = Slices([range(5), range(5, 8), range(8, 17)], comm.size, comm.rank)
    vector = np.arange(17.0)
    mine = np.concatenate([vector[part.start : part.stop] for part in slices.own])
    with Communicator(comm) as wrapped, Communicator(comm) as gathering:
        for several in (1, 2):
            whole = several > 1
            turns = (FORWARD + BACKWARD) * several
            params = mine.copy() if stage == 3 else vector.copy()
            exchange = PieceExchange(
                wrapped, gathering, slices, params, stage, turns, steps=2, shared=[()] * 3, whole=whole
            )
            for step in (1.0, 2.0):
                if comm.rank and step == 2:
                    exchange.pass_by()
                    continue
                exchange.begin(1)
                with pytest.raises(UsageError, match="call step"):
                    exchange.begin(1)
                with pytest.raises(UsageError, match="the batch has ended after 0 of"):
                    exchange.end()
                for number, (unit, backward) in enumerate(turns):
                    part = slices.units[unit]
                    exchange.arrive(unit, backward)
                    np.testing.assert_array_equal(exchange.parameters[unit], vector[part.start : part.stop])
                    if backward:
                        exchange.gradients[unit][:] = step * vector[part.start : part.stop]
                    (exchange.used(unit) if backward else exchange.leave(unit))
                    if backward and number >= len(turns) - 3:
                        exchange.ready(part)
                exchange.end()
            with pytest.raises(UsageError, match="call step"):
                exchange.begin(1)
            exchange.finish()
            np.testing.assert_array_equal(exchange.own, 4 * mine)  # 1 + 1 + 2
            if stage == 3:
                exchange.begin(0, trains=False, turns=exchange.planned(FORWARD))
                with pytest.raises(UsageError, match="expected turn 0 of 3"):
                    exchange.arrive(1)
                exchange.go_by(FORWARD)
                exchange.end()
            assert (exchange.gradient is not None) == whole
            exchange.free()
