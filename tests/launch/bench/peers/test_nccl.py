"""Where NCCL or PyTorch is missing on one rank, it is left out on all; with GPUs it sums as NumPy does."""

import sys

import numpy as np
import pytest
from harness.device import cupy

from psgd.launch.bench.peers import nccl


@pytest.mark.ranks(2)
def test_one_rank_without_is_none_on_all(comm):
    load, share = nccl._load, nccl._one_gpu_each
    nccl._load = lambda: None if comm.rank else object()
    nccl._one_gpu_each = lambda comm: pytest.fail("asked though NCCL is missing")
    before = sys.modules.get("torch", 0)
    sys.modules["torch"] = None
    try:
        assert nccl.Nccl.start(comm) is None
        assert nccl.TorchNccl.start(comm) is None
    finally:
        nccl._load, nccl._one_gpu_each = load, share
        sys.modules.pop("torch") if before == 0 else sys.modules.update(torch=before)


@pytest.mark.gpu
@pytest.mark.ranks(1)
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_single_rank_keeps_its_values(comm, op):
    xp = cupy()
    peer = nccl.Nccl.start(comm)
    if peer is None:
        pytest.skip("CuPy has no NCCL")
    vector = xp.arange(1000, dtype=np.float32)
    peer.allreduce(vector, op)
    np.testing.assert_array_equal(vector.get(), np.arange(1000, dtype=np.float32))
    peer.close()
