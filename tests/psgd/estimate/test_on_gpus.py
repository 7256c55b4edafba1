"""Estimates of runs on GPUs: the peak of each rank's pool of memory is within 5 % of them."""

import sys

import pytest
from harness import HARNESS
from harness.device import cupy

pytestmark = pytest.mark.gpu
RANKS = HARNESS / "gpu_memory_ranks.py"


def test_the_peak_of_the_pool(job):
    cupy()
    done = job(2, [sys.executable, str(RANKS)], env={"PSGD_PEERS": "1"}, timeout=170)  # also where they share a GPU
    assert done.returncode == 0, done.stdout + done.stderr
