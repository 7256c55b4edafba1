"""The step of a rank's own slices is that of the whole vector, there."""

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.optim import rules
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import constant
from psgd.parallel.sharded.own_update import OwnUpdate
from psgd.parallel.sharded.slices import Slices


@pytest.mark.ranks(3)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_steps_are_those_of_the_whole(comm, clip):
    slices = Slices([range(7), range(7, 9), range(9, 1001)], comm.size, comm.rank)
    options = OptimizerOptions(rules.adam(), constant(0.1), clip)
    whole = np.cos(np.arange(slices.whole)).astype(np.float32)
    grad = np.sin(np.arange(slices.whole)).astype(np.float32)
    own = [grad[part.start : part.stop] for part in slices.own]
    alone = options.create(whole.copy())
    with Communicator(comm) as wrapped:
        update = OwnUpdate(options, wrapped, slices, whole, own)
        assert {each.size for each in update.optimizer.state} == {slices.size}
        for step in range(3):
            alone.take(grad, 0.5, step)
            update.take(0.5, step)
        for part in slices.own:
            mine = slice(part.start, part.stop)
            np.testing.assert_allclose(whole[mine], alone.params[mine], rtol=0 if not clip else 1e-6)
        assert update.optimizer.version == 3
