"""What a rank keeps of a sequence, and the values of what was nowhere."""

import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.torch.pieces import own_layers  # noqa: E402
from psgd.torch.pieces.sequential_stages import SequentialStages  # noqa: E402

nn = torch.nn


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.scale


def described(*layers):
    with torch.device("meta"):
        module = nn.Sequential(*(make() for make in layers))
    return SequentialStages(module, (3,), nn.functional.cross_entropy)


def test_values_of_layers_from_the_meta_device_are_those_of_their_modules():
    whole = described(lambda: nn.Linear(3, 3), lambda: nn.BatchNorm1d(3), lambda: nn.Linear(3, 3))
    own_layers.check(whole.layers, None)
    state = torch.get_rng_state()
    kept = own_layers.keep(whole.layers, whole.layers[1:], whole.first_names, None, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(kept.get_submodule("1").running_var, torch.ones(3))
    assert 0 < kept.get_submodule("2").weight.abs().max() <= 3**-0.5
    assert whole.layers[0].module.weight.is_meta and "0.weight" not in kept.state_dict()


def test_a_module_without_a_reset_needs_a_function():
    whole = described(lambda: nn.Linear(3, 3), Bare)
    with pytest.raises(UsageError, match=r"layer 1 \(Bare\) is on the meta device"):
        own_layers.check(whole.layers, None)

    def init(layer):
        for p in layer.parameters():
            p.fill_(2)

    own_layers.check(whole.layers, init)
    kept = own_layers.keep(whole.layers, whole.layers, whole.first_names, init, seed=1)
    assert all(bool((p == 2).all()) for p in kept.parameters())


def test_a_tie_is_one_parameter_again():
    whole = described(lambda: nn.Linear(3, 3), lambda: nn.Linear(3, 3))
    whole.layers[1].module.weight = whole.layers[0].module.weight
    whole.first_names["1.weight"] = "0.weight"
    kept = own_layers.keep(whole.layers, whole.layers, whole.first_names, None, seed=1)
    assert kept.get_submodule("1").weight is kept.get_submodule("0").weight


def test_half_a_layer_on_the_meta_device_is_refused():
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].bias = nn.Parameter(torch.empty(3, device="meta"))
    whole = SequentialStages(module, (3,), nn.functional.cross_entropy)
    with pytest.raises(UsageError, match="got a mixture"):
        own_layers.check(whole.layers, None)
