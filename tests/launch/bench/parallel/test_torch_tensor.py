"""PyTorch's tensor parallelism as a peer: its loss is psgd's, and it is timed where it is asked for."""

import importlib.util
import json

import pytest

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@needs_torch
@pytest.mark.job
def test_a_row_with_pytorch(psgd_command):
    sizes = ("--hidden", "8", "--width", "13", "--batch", "5", "--repeats", "2", "--torch")
    result = psgd_command("bench", "parallel", *sizes, "--json", timeout=240)
    assert result.returncode == 0, result.stderr
    (row,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert row["torch_seconds"] > 0
