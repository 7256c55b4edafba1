"""`psgd bench offload`: what it refuses without a GPU, and its table."""

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch.bench.offload.command import COLUMNS, cells, offload


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "expected cuda, got 'cpu'"),
        (["--optimizer", "lamb"], "--optimizer: expected one of sgd, "),
        (["--batch-sizes", "2,x"], "--batch-sizes: expected numbers of 1 or more"),
        (["--batch-sizes", "0"], "--batch-sizes: expected numbers of 1 or more"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(offload, arguments, catch_exceptions=False, standalone_mode=False)


def test_a_row():
    row = {
        **{"batch_size": 2, "offload": "optimizer", "compute": 0.1, "bus": 0.05, "update": 0.2, "step": 0.22},
        **{"without": 0.11, "device_bytes": 2_020_000_000, "expected_bytes": 2_000_000_000, "verified": False},
    }
    made = dict(zip(COLUMNS, cells(row), strict=True))
    assert made["of the longest"] == "1.10" and made["of without"] == "2.00"
    assert made["GPU memory"] == "2.02 GB" and made["of the formula"] == "1.010" and made["verified"] == "NO"
