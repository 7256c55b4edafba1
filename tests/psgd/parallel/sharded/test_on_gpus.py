"""Sharded models on GPUs: all stages have the bits of one rank with the whole model."""

import sys

import pytest
from harness import HARNESS
from harness.device import cupy

pytestmark = pytest.mark.gpu
RANKS = HARNESS / "sharded_gpu_ranks.py"


def test_all_stages(job):
    cupy()
    done = job(2, [sys.executable, str(RANKS)], env={"PSGD_PEERS": "1"}, timeout=170)  # also where they share a GPU
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 4
