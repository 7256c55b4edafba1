"""Which model `psgd.torch.shard` makes of a module."""

import pytest

import psgd

torch = pytest.importorskip("torch")
from psgd.torch.sharded.module import ShardedModule  # noqa: E402
from psgd.torch.sharded.whole_module import WholeModule  # noqa: E402


@pytest.mark.ranks(2, timeout=60)
def test_stages_2_and_3_are_shared_out_and_each_rank_has_the_first_ones_values(comm):
    for stage, kind in ((1, WholeModule), (2, ShardedModule), (3, ShardedModule)):
        torch.manual_seed(comm.rank)
        module = torch.nn.Linear(5, 3)
        first = comm.bcast(module.weight.detach().clone())
        with psgd.torch.shard(module, comm, stage=stage) as model:
            assert type(model) is kind
            if stage == 3:
                assert module.weight.isnan().all() and model.params.size == model.slices.size < model.layout.size
            if stage == 2:
                assert torch.equal(module.weight, first) and model.params.size == model.layout.size
            with psgd.connect(comm, model, strategy="allreduce", lr=0.1):
                pass
            with model.gathered():
                assert torch.equal(module.weight, first)
