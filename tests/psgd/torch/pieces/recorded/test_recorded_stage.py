"""Passes that are recorded have the bits of those by Python, on a GPU and on a simulated one."""

import numpy as np
import pytest
from harness.device import cupy
from harness.fake_gpu import FakeGpu

import psgd
from psgd.parallel import pipeline as module_of_pipelines

torch = pytest.importorskip("torch")
from psgd.torch.pieces.recorded.recorded_stage import RecordedStage  # noqa: E402 -- where PyTorch is

nn = torch.nn
PLACES = (pytest.param("simulated"), pytest.param("gpu", marks=pytest.mark.gpu))


class Odd(nn.Module):
    """Of one's own: it may not be recorded."""

    def forward(self, x):
        return x


def make(odd):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 9),
        nn.BatchNorm1d(9),
        nn.ReLU(inplace=True),
        Odd() if odd else nn.Identity(),
        nn.Dropout(0.3),
        nn.Linear(9, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.3),
        nn.Linear(8, 5),
    )


def trained(comm, xp, odd):
    """Losses, parameters, buffers and an evaluation of some steps, and how many stages are recorded."""
    options = {"cuts": (5,) if comm.size == 2 else (), "sample": (6,), "batch": 12, "microbatches": 3}
    with psgd.torch.pipeline(make(odd), comm, device="cuda", **options) as stages:
        losses = []
        for step, n in enumerate((12, 12, 10, 12, 12, 6, 12, 12)):
            rng = np.random.default_rng(step)
            x, y = rng.standard_normal((n, 6)).astype(np.float32), rng.integers(0, 5, n)
            losses.append(stages.gradient(n, x, y, key=step))
            stages.params[:] -= xp.float32(0.1) * stages.grads
            if step == 5:
                losses.append(stages.evaluate(n, x, y))
        recorded = sum(isinstance(each, RecordedStage) for each in stages.pipeline._captured)
        buffers = [b.cpu().numpy() for b in stages.module.buffers()]
        return losses, xp.asnumpy(stages.params) if xp is not np else stages.params.copy(), buffers, recorded


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("place", PLACES)
def test_bits_of_passes_by_python(comm, place):
    with pytest.MonkeyPatch.context() as patch:
        xp = np
        if place == "gpu":
            xp = cupy()
            from psgd.collectives.device.pick_gpu import choose_device

            choose_device(comm)
        else:
            patch.setattr(module_of_pipelines, "_gpu", FakeGpu)
        losses, params, buffers, recorded = trained(comm, xp, odd=False)
        assert recorded == 1
        patch.setenv("PSGD_CUDA_GRAPHS", "0")
        patch.setattr(FakeGpu, "captures", False)
        again, there, others, none = trained(comm, xp, odd=False)
        assert none == 0 and again == losses and np.array_equal(params, there)
        assert all(map(np.array_equal, buffers, others))
        patch.undo()
        if place != "gpu":
            patch.setattr(module_of_pipelines, "_gpu", FakeGpu)
        found, mine, _, own = trained(comm, xp, odd=True)
        assert own == (comm.size == 2 and comm.rank == 1) and found == losses and np.array_equal(params, mine)
    comm.Barrier()
