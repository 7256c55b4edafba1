"""The benchmark on two ranks without GPUs: the loss falls."""

import numpy as np
import pytest

from psgd.launch.bench.gpt2.trial import GPT2Trial


@pytest.mark.ranks(2)
def test_the_loss_falls(comm):
    from psgd.launch.bench.gpt2 import ranks

    trial = GPT2Trial(2, 32, 4, 16, 300, 16, 4, 3, 12, 2, "cpu", lr=2e-4)
    found = ranks.measure(comm, trial, peak=1.0, peer=False)
    mine = found["psgd"]
    assert "fsdp2" not in found and found["layers"] == 2
    assert mine["losses"][-1] < mine["losses"][0] - 0.05 and np.isfinite(mine["losses"]).all()
    assert len(mine["losses"]) == 12 and mine["tokens_per_second"] == pytest.approx(16 * 16 / mine["step_s"])
    assert comm.allgather(mine["losses"])[0] == mine["losses"]
    assert mine["estimated_bytes"] == sum(mine["bytes_by_estimate"].values()) > 0
