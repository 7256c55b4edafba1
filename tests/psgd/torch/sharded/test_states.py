"""Whole states of sharded modules, and passes outside of training."""

import pytest

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402


@pytest.mark.ranks(2, timeout=120)
def test_states_evaluation_and_what_is_no_forward_pass(comm):
    for stage in (1, 2, 3):
        module = cases.made("resnet", comm.rank)
        first, other = cases.made("resnet", 0), cases.made("resnet", 7)
        with psgd.torch.shard(module, comm, stage=stage) as model:
            x = cases.batch("resnet", comm.rank, 0)[0]
            with psgd.connect(comm, model, strategy="allreduce", lr=0.1):
                module.eval()
                with torch.no_grad():
                    assert torch.equal(module(x), first.eval()(x))
            state = model.state_dict()
            assert (state == {}) == (comm.rank > 0)
            if comm.rank == 0:
                cases.same_state(state, first.state_dict())
            model.load_state_dict(other.state_dict() if stage == 1 or comm.rank == 0 else None)
            cases.same_state(model.state_dict(None), other.state_dict())
            with model.gathered() as whole:
                for p, q in zip(whole.parameters(), other.parameters(), strict=True):
                    assert torch.equal(p, q)
            if stage == 3:
                refused = "the module is sharded, and this rank has a part of it"
                with pytest.raises(UsageError, match=refused):
                    module.state_dict()
                with pytest.raises(UsageError, match=refused):
                    module.load_state_dict({})
                wrong = other.state_dict() | {"stem.bias": torch.zeros(4)}
                with pytest.raises(UsageError, match=r"stem.bias: expected shape \(3,\), got \(4,\)"):
                    model.load_state_dict(wrong if comm.rank == 0 else None)
