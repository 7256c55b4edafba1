"""With a GPU, every kernel computes what the host does."""

import pytest
from harness.device import cupy


@pytest.mark.gpu
def test_verified_and_timed():
    cupy()
    from psgd.launch.bench.kernels import measure

    rows = measure.measure(1 << 20, 3)
    assert [row["kernel"] for row in rows if not row["verified"]] == []
    assert len(rows) == len(measure.CASES) + 1
    assert all(row["gbs"] > 1 for row in rows)
