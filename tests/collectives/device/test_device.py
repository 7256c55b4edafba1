"""Collectives on GPU arrays, on real GPUs and ranks over each transport: on one GPU that ranks share, or on several."""

import sys

import pytest
from harness import HARNESS
from harness.device import cupy

RANKS = HARNESS / "device_ranks.py"


@pytest.mark.gpu
@pytest.mark.parametrize("environment", [{}, {"PSGD_CUDA_AWARE": "0"}, {"PSGD_CUDA_AWARE": "0", "PSGD_SHARED": "0"}])
def test_every_check_on_ranks(job, environment):
    cupy()
    done = job(2, [sys.executable, str(RANKS)], env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("transport") == 2
