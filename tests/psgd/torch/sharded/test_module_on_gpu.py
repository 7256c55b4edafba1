"""Sharded modules on GPUs: the bits of allreduce there, and the memory by formula."""

import pytest

import psgd

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402
from harness.torch_gpu import gpu  # noqa: E402

pytestmark = pytest.mark.gpu
nn = torch.nn


@pytest.mark.ranks(2, timeout=240)
@pytest.mark.parametrize("kind", ["mlp", "encoder"])
def test_losses_and_weights_are_those_of_allreduce(comm, kind):
    device = gpu(comm)
    whole = cases.run(comm, kind, 0, 20, device=device, clip_norm=0.5, uneven=1)
    for stage in (1, 2, 3):
        ran = cases.run(comm, kind, stage, 20, device=device, clip_norm=0.5, uneven=1)
        assert ran.losses == whole.losses, stage
        cases.same_state(ran.state, whole.state)
        ran.model.close()


@pytest.mark.ranks(2, timeout=240)
def test_memory_of_a_rank_is_that_of_the_formula(comm):
    """Stage 3 with Adam: 16 bytes a parameter over the ranks, and two units of gradients and of parameters."""
    device, width, layers = gpu(comm), 1024, 12
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    before = used()
    with psgd.torch.shard(module, comm, device=device) as model:
        unit = 4 * len(model.units[0].part)
        with psgd.connect(comm, model, strategy="allreduce", rule="adam", lr=0.01) as ps:
            most = 0
            for _ in range(3):
                ps.overlap(1)
                module(torch.ones(1, width, device=device)).sum().backward()
                ps.step(1)
                most = max(most, used() - before)
        expected = 16 * model.layout.size / comm.size + 4 * unit
        assert abs(most - expected) < 0.05 * expected, (most, expected)


def used():
    """Bytes of this process's arrays on the GPU: PyTorch's at their most, and CuPy's."""
    import cupy

    return torch.cuda.max_memory_allocated() + cupy.get_default_memory_pool().used_bytes()
