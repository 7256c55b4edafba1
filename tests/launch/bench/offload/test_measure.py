"""With a GPU: offloaded steps have the bits of those without, in the memory of the formula."""

import pytest
from harness.device import cupy


@pytest.mark.gpu
def test_verified_and_timed():
    cupy()
    from psgd.launch.bench.offload import measure

    trial = measure.OffloadTrial(3, 256, 4, 64, 128, "adam", 2, steps=2, repeats=2)
    rows = list(measure.rows(trial, [4]))
    assert [row["offload"] for row in rows] == list(measure.MODES)
    assert all(row["verified"] for row in rows)
    for row in rows:
        assert min(row[name] for name in ("compute", "bus", "update", "step", "without")) > 0
        assert row["device_bytes"] == pytest.approx(row["expected_bytes"], rel=0.05)
