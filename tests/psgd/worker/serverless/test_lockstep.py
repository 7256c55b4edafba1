"""Workers that meet in rounds: all go on until the last one is done, and restored arrays reach all."""

import numpy as np
import pytest
from harness.peers import start_of

import psgd


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("strategy", ["allreduce", "averaging"])
def test_the_last_worker_is_waited_for_in_further_rounds(comm, strategy):
    params = start_of(comm, 33)
    options = {"period": 1} if strategy == "averaging" else {}
    with psgd.connect(comm, params, strategy=strategy, lr=1.0, **options) as ps:
        np.testing.assert_array_equal(ps.params, np.cos(np.arange(33)).astype(np.float32))
        for _ in range(2 * ps.worker):
            ps.grads[:] = -1.0
            ps.step(1)
        assert ps.version == 2 * ps.worker  # those who are done take part without samples
    np.testing.assert_allclose(params, np.cos(np.arange(33)) + 2 * (comm.size - 1), rtol=1e-5)
    assert ps.bytes_sent == ps.bytes_received > 0


@pytest.mark.ranks(3)
def test_what_one_restored_reaches_all(comm, tmp_path):
    """Worker 0 alone has saved the momentum; each worker's next step needs it."""

    def train(steps, **more):
        params = start_of(comm, 9, np.float64)
        options = {"strategy": "allreduce", "rule": "momentum", "lr": 0.5, "checkpoint_dir": tmp_path / "run"}
        with psgd.connect(comm, params, **options, **more) as ps:
            while ps.clock < steps and not ps.stop:
                if ps.clock == 3 and not more:
                    ps.save(stop=True)
                ps.grads[:] = ps.params + ps.worker
                ps.step(1 + ps.worker)
        return params

    train(100)
    params, w, v = train(8, resume=True), np.cos(np.arange(9.0)), np.zeros(9)
    for _ in range(8):
        v = 0.9 * v + sum((k + 1) * (w + k) for k in range(3)) / 6
        w = w - 0.5 * v
    np.testing.assert_allclose(params, w, rtol=1e-12)
