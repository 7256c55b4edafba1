"""The orders whose centre is shared memory, in turns that barriers enforce; `test_easgd.py` has them racing."""

import numpy as np
import pytest

import psgd

A = 0.25


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("order", ["async", "hogwild"])
def test_an_exchange_is_seen_by_all_at_once_and_sends_nothing(comm, order):
    params, n = np.zeros(9), comm.size
    options = {"strategy": "easgd", "easgd_order": order, "period": 1, "lr": 0.5, "rho": 0.5}
    x, centre = [0.0] * n, 0.0
    with psgd.connect(comm, params, **options) as ps:
        for clock in range(3):
            for worker in range(n):
                if worker == ps.worker:
                    ps.grads[:] = -2.0 * (worker + 1) if clock == 0 else 0.0
                    ps.step(1)
                comm.Barrier()
                pull = A * (x[worker] - centre)
                x[worker] += (worker + 1.0 if clock == 0 else 0.0) - pull
                centre += pull
                np.testing.assert_array_equal(ps.evaluated_params, centre)  # before this one's next exchange
                assert worker != ps.worker or (ps.params[0], ps.version) == (x[worker], clock * n + worker + 1)
                comm.Barrier()
    np.testing.assert_array_equal(params, centre)
    assert (ps.bytes_sent, ps.bytes_received) == (0, 0)


@pytest.mark.ranks(3)
def test_under_the_lock_no_exchange_is_lost(comm):
    """Without gradients what workers and centre have together stays: each exchange moves, none makes or loses."""
    params, steps = np.zeros(501), 300
    with psgd.connect(comm, params, strategy="easgd", easgd_order="async", period=1, lr=1.0, rho=0.25) as ps:
        for clock in range(steps):
            ps.grads[:] = -(ps.worker + 1.0) if clock == 0 else 0.0
            ps.step(1)
        assert ps.version <= 3 * steps
        own = ps.params.copy()
    np.testing.assert_allclose(comm.allreduce(own) + params, 1.0 + 2.0 + 3.0, rtol=1e-12)
