"""Hooks of DDP with gradients on a GPU: those of DDP on the host."""

import pytest
from harness.ddp import process_group
from harness.device import cupy

import psgd
from psgd import collectives

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.gpu
HOOKS = {
    "allreduce": (lambda: psgd.torch.allreduce_hook, 1e-6),
    "fp16": (lambda: psgd.torch.fp16_compress_hook, 1e-3),
    "bf16": (lambda: psgd.torch.bf16_compress_hook, 1e-2),
    "onebit": (lambda: psgd.torch.onebit_hook(block=64), 1e-4),
    "topk": (lambda: psgd.torch.topk_hook(density=0.5), 1e-4),
}


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5))


def gradients(comm, hook, state, device, dtype):
    module = net().to(device, dtype)
    model = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=5e-4, gradient_as_bucket_view=True)
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimizer, found = torch.optim.SGD(module.parameters(), lr=0.1), []
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(6, 7, generator=torch.Generator().manual_seed(100 * comm.rank + step)).to(device, dtype)
        model(x).square().mean().backward()
        found.append([p.grad.float().cpu().clone() for p in module.parameters()])
        optimizer.step()
    return found


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("thread", ["0", "1"])
def test_gradients_are_those_of_the_host(comm, tmp_path, name, thread):
    cupy()
    make, tolerance = HOOKS[name]
    with pytest.MonkeyPatch.context() as patch, process_group(comm, tmp_path):
        patch.setenv("PSGD_PROGRESS", thread)
        with collectives.Communicator(comm) as ours:
            there = gradients(comm, make(), ours, "cuda", torch.float32)
            here = gradients(comm, make(), ours, "cpu", torch.float32)
    for one, other in zip(there, here, strict=True):
        for mine, reference in zip(one, other, strict=True):
            torch.testing.assert_close(mine, reference, rtol=tolerance, atol=tolerance)
    flat = torch.cat([g.reshape(-1) for g in there[-1]])
    assert flat.any() and len(set(comm.allgather(flat.numpy().tobytes()))) == 1


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(comm, tmp_path, dtype):
    cupy()
    kind = getattr(torch, dtype)
    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours:
        found = gradients(comm, psgd.torch.allreduce_hook, ours, "cuda", kind)
    flat = torch.cat([g.reshape(-1) for each in found for g in each])
    assert flat.isfinite().all() and flat.any()
    assert len(set(comm.allgather(flat.numpy().tobytes()))) == 1
