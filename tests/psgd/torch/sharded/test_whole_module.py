"""What `psgd.torch.shard` gives where each rank has the whole module."""

import pytest
from mpi4py import MPI

import psgd

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402

from psgd.torch.sharded.whole_module import WholeModule  # noqa: E402


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_rank_has_all_in_every_stage(stage):
    module, other = cases.made("resnet"), cases.made("resnet", 7)
    with psgd.torch.shard(module, MPI.COMM_SELF, stage=stage) as model:
        assert isinstance(model, WholeModule) and model.sharding == 0
        with psgd.connect(MPI.COMM_SELF, model, strategy="allreduce", lr=0.1) as ps:
            x, y = cases.batch("resnet", 0, 0)
            before = module.head.weight.detach().clone()
            ps.overlap(len(x))
            torch.nn.functional.cross_entropy(module(x), y).backward()
            ps.step(len(x))
            assert not torch.equal(module.head.weight, before)
        model.load_state_dict(other.state_dict())
        model.load_state_dict(None)
        cases.same_state(model.state_dict(), other.state_dict())
        assert model.state_dict(rank=1) == {}
        with model.gathered() as whole:
            assert whole is module


def test_a_module_from_the_meta_device_has_the_first_values_of_the_seed():
    states = []
    for seed in (1, 1, 2):
        with torch.device("meta"):
            module = cases.made("mlp")
        model = psgd.torch.shard(module, MPI.COMM_SELF, seed=seed)
        assert not any(p.is_meta for p in module.parameters())
        states.append(model.state_dict())
    cases.same_state(states[1], states[0])
    assert not torch.equal(states[2]["0.weight"], states[0]["0.weight"])
