"""`psgd bench kernels`: without a GPU it says what is missing."""

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch.bench.kernels.command import kernels


def test_other_devices_are_refused():
    with pytest.raises(UsageError, match="expected cuda, got 'cpu'"):
        CliRunner().invoke(kernels, ["--device", "cpu"], catch_exceptions=False, standalone_mode=False)
