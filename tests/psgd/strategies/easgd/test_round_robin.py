"""The round-robin order in closed form; `test_easgd.py` has all orders against simulations."""

import numpy as np
import pytest

import psgd

OPTIONS = {"strategy": "easgd", "easgd_order": "round-robin", "period": 1, "lr": 0.5, "rho": 0.5}
A = 0.25


@pytest.mark.ranks(2, 3, 5)
def test_each_worker_meets_the_centre_after_the_one_before_it(comm):
    params, n = np.zeros(7), comm.size
    with psgd.connect(comm, params, **OPTIONS) as ps:
        seen = []
        for clock in range(3):
            ps.grads[:] = -2.0 * (ps.worker + 1) if clock == 0 else 0.0
            ps.step(1)
            seen.append((ps.params[0], ps.evaluated_params[0], ps.version))
    x, centre, wanted = [0.0] * n, 0.0, []
    for clock in range(3):
        for k in range(n):
            pull = A * (x[k] - centre)
            x[k] += (k + 1.0 if clock == 0 else 0.0) - pull
            centre += pull
            if k == comm.rank:
                wanted.append((x[k], centre, clock * n + k + 1))
    assert seen == wanted
    np.testing.assert_array_equal(params, centre)


@pytest.mark.ranks(3)
def test_workers_without_steps_hand_the_centre_on(comm):
    params = np.zeros(2)
    with psgd.connect(comm, params, **OPTIONS) as ps:
        for clock in range(4 if ps.worker == 1 else 0):
            ps.grads[:] = -2.0 if clock == 0 else 0.0
            ps.step(1)
    x, centre = 1.0, 0.0
    for _ in range(3):
        x, centre = x - A * (x - centre), centre + A * (x - centre)
    np.testing.assert_array_equal(params, centre)
    assert comm.allreduce(ps.bytes_sent) == comm.allreduce(ps.bytes_received) > 0
