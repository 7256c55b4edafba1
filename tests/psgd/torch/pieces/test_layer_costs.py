"""What layers cost: more time and bytes where there is more to do, and nothing of the module changes."""

import pytest

torch = pytest.importorskip("torch")
from psgd.torch.pieces.layer_costs import measure  # noqa: E402 -- where PyTorch is
from psgd.torch.pieces.sequential_stages import SequentialStages  # noqa: E402

nn = torch.nn


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.alone
def test_seconds_and_bytes_of_each_layer(device):
    with torch.device(device):
        module = nn.Sequential(
            nn.Flatten(), nn.Linear(6, 2000), nn.ReLU(inplace=True), nn.Linear(2000, 2000), nn.BatchNorm1d(2000)
        )
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    generator = torch.get_rng_state()
    flat, first, relu, wide, norm = measure(SequentialStages(module, (2, 3), nn.functional.mse_loss), 50, 2)
    assert wide.seconds > first.seconds > 0 and flat.seconds < wide.seconds
    assert [each.held for each in (flat, first, relu)] == [0, 4 * 4 * 7 * 2000, 0]
    assert wide.held == 4 * 4 * 2001 * 2000 and norm.held == 4 * 4 * 2 * 2000
    assert first.alive == 50 * 6 * 4 and wide.alive == 50 * 2000 * 4 and relu.alive == 50 * 2000 * 4
    assert norm.alive >= 50 * 2000 * 4
    assert torch.equal(torch.get_rng_state(), generator)
    if device == "cpu":
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(tensor.device.type == device and p.grad is None for p in module.parameters() for tensor in (p,))
