"""`psgd bench ddp --device cuda`: what it verifies, and on a GPU a row of it."""

import json

import pytest
from harness.device import cupy

from psgd.kernels.errors import Error

pytest.importorskip("torch")


@pytest.mark.ranks(2)
def test_other_losses_are_found(comm):
    from psgd.launch.bench.ddp import on_gpu

    same = {"peer": lambda: 1.0, "psgd": lambda: 1.0 + 1e-7 * comm.rank}
    assert on_gpu.compare(comm, same) == pytest.approx(1e-7)
    for other in (1 + 1e-5, 2.0, float("nan")):
        with pytest.raises(Error, match="psgd: losses are up to"):
            on_gpu.compare(comm, same | {"psgd": lambda other=other: other if comm.rank else 1.0})


@pytest.mark.gpu
@pytest.mark.job
def test_a_row(psgd_command):
    if cupy().cuda.runtime.getDeviceCount() < 2:
        pytest.skip("NCCL wants a GPU for each rank")
    done = psgd_command("bench", "ddp", "--device", "cuda", "--batch", "8", "--repeats", "2", "--json", timeout=200)
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert row["batch"] == 8 and row["bucket_mb"] > 0 and 0 <= row["apart"] < 1e-2
    assert all(row[f"{name}_seconds"] > 0 for name in ("peer", "hook", "psgd", "alone"))
