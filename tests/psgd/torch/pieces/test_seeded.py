"""Random numbers of a block: by its seed, and no trace outside."""

import pytest

torch = pytest.importorskip("torch")
from harness.torch_gpu import gpu  # noqa: E402

from psgd.torch.pieces.seeded import seeded  # noqa: E402 -- where PyTorch is


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_block_draws_by_its_seed_alone(device):
    place = gpu() if device == "cuda" else torch.device(device)
    torch.manual_seed(1)
    wanted = torch.rand(3).tolist(), torch.rand(3, device=place).tolist()
    torch.manual_seed(1)
    found = []
    for seed in (5, 6, 5):
        with seeded(seed, place):
            found.append((torch.rand(4).tolist(), torch.rand(4, device=place).tolist()))
    assert found[0] == found[2] and found[0][0] != found[1][0] and found[0][1] != found[1][1]
    assert (torch.rand(3).tolist(), torch.rand(3, device=place).tolist()) == wanted
    with pytest.raises(ZeroDivisionError), seeded(2**63 - 1, place):
        raise ZeroDivisionError
