"""Workers that meet for checkpoints only: one asks, all come, also from where they wait for the end."""

import time

import numpy as np
import pytest

import psgd

OPTIONS = [{"strategy": "hogwild"}, {"strategy": "decentralized", "peers": "pairs"}, {"strategy": "decentralized"}]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("waits", [False, True])
def test_who_steps_and_who_waits_come_to_the_checkpoint_that_one_asks_for(comm, tmp_path, options, waits):
    params = np.zeros(50)
    with psgd.connect(comm, params, checkpoint_dir=tmp_path / "run", lr=0.1, **options) as ps:
        limit = time.monotonic() + (0 if waits and ps.worker else 20)
        while time.monotonic() < limit and not ps.stop:
            if ps.clock == 20 and ps.worker == 0:
                ps.save(stop=True)
            ps.grads[:] = 1.0
            ps.step(1)
        assert ps.stop or (waits and ps.worker)
    assert ps.leaving
    comm.Barrier()
    assert len(list((tmp_path / "run").glob("step-*"))) == 1
