"""The synchronous order in closed form; `test_easgd.py` has all orders against simulations."""

import numpy as np
import pytest

import psgd

OPTIONS = {"strategy": "easgd", "easgd_order": "sync", "period": 1, "lr": 0.5, "rho": 0.25}
A = 0.5 * 0.25


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("n", [1, 4097])
def test_all_meet_the_centre_at_once(comm, n):
    """x_k = k + 1 after a step without a pull, then a pull of all from the old values: sums that are exact."""
    params, x = np.zeros(n), 0.5 * (comm.rank + 1)
    with psgd.connect(comm, params, **OPTIONS) as ps:
        centre = ps.evaluated_params
        ps.grads[:] = -(ps.worker + 1.0)
        ps.step(3)
        np.testing.assert_array_equal(ps.params, x)
        np.testing.assert_array_equal(centre, 0.0)  # all were at the centre before the step
        ps.grads[:] = 0.0
        ps.step(3)
        np.testing.assert_array_equal(ps.params, x - A * x)
        np.testing.assert_array_equal(ps.evaluated_params, sum(A * 0.5 * (k + 1) for k in range(comm.size)))
        assert ps.version == 2
    np.testing.assert_array_equal(params, sum(A * 0.5 * (k + 1) for k in range(comm.size)))


@pytest.mark.ranks(3)
def test_a_worker_that_is_done_pulls_no_more(comm):
    params = np.zeros(5)
    with psgd.connect(comm, params, **OPTIONS) as ps:
        for clock in range(3 if ps.worker else 1):
            ps.grads[:] = -1.0 if clock == 0 else 0.0
            ps.step(1)
    x, centre = 0.5, 0.0  # of each of the two that go on
    for _ in range(2):
        x, centre = x - A * (x - centre), centre + 2 * A * (x - centre)
    np.testing.assert_array_equal(params, centre)
