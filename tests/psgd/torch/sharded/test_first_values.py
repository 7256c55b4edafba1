"""First values of modules that are nowhere yet."""

import pytest

import psgd

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402

nn = torch.nn


@pytest.mark.ranks(1, 2, timeout=120)
def test_first_values_of_a_module_on_the_meta_device(comm):
    states = []
    for stage in (1, 2, 3):
        with torch.device("meta"):
            module = cases.made("encoder")
            module.layers.layers[1] = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6))
        before = torch.random.get_rng_state()
        model = psgd.torch.shard(module, comm, stage=stage, init=cases.values, seed=5)
        assert torch.equal(before, torch.random.get_rng_state())
        states.append(model.state_dict(None))
        assert module.head.weight is module.embed.weight
        model.close()
    cases.same_state(states[1], states[0])
    cases.same_state(states[2], states[0])
    assert all(value.isfinite().all() for value in states[0].values())
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = psgd.torch.shard(module, comm, seed=1)
    assert model.state_dict(None)["1.running_var"].eq(1).all()
    weight = model.state_dict(None)["0.weight"]
    assert 0 < weight.abs().max() <= 3**-0.5
    model.close()
