"""The benchmark of GPU arrays: without a GPU one error on all ranks, with one every contender is verified."""

import pytest
from harness.device import cupy

from psgd.kernels.errors import UsageError
from psgd.launch.bench.problem import BenchOptions


@pytest.mark.ranks(2)
def test_without_a_gpu_it_is_refused_on_all_ranks(comm):
    from psgd.collectives.device import pick_gpu
    from psgd.launch.bench.collective import on_gpu

    def none():
        raise UsageError("device cuda: expected CuPy")

    real, pick_gpu.visible_devices = pick_gpu.visible_devices, none
    try:
        with pytest.raises(UsageError, match="expected CuPy"):
            next(iter(on_gpu.measure(comm, BenchOptions("allreduce", device="cuda"), [1024])))
    finally:
        pick_gpu.visible_devices = real


@pytest.mark.gpu
@pytest.mark.ranks(1)
def test_rows_of_one_rank(comm):
    cupy()
    from psgd.launch.bench.collective import on_gpu, table

    rows = list(on_gpu.measure(comm, BenchOptions("allreduce", repeats=2, device="cuda"), [1 << 20]))
    assert rows[0].nbytes == 1 << 20 and rows[0].seconds[table.STAGED] > 0
