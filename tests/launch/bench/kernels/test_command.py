"""`psgd bench kernels`: without a GPU it says what is missing; with one, every kernel is the host's."""

import pytest
from click.testing import CliRunner
from harness.device import cupy

from psgd.kernels.errors import UsageError
from psgd.launch.bench.kernels.command import kernels


def test_other_devices_are_refused():
    with pytest.raises(UsageError, match="expected cuda, got 'cpu'"):
        CliRunner().invoke(kernels, ["--device", "cpu"], catch_exceptions=False, standalone_mode=False)


@pytest.mark.gpu
def test_verified_and_timed():
    cupy()
    from psgd.launch.bench.kernels import measure

    rows = measure.measure(1 << 20, 3)
    assert [row["kernel"] for row in rows if not row["verified"]] == []
    assert len(rows) == len(measure.CASES) + 1
    assert all(row["gbs"] > 1 for row in rows)
