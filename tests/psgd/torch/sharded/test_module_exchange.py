"""Units in buffers that they share, and in memory of their own where those are taken."""

import pytest

import psgd
from psgd.optim import rules
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import constant

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402

nn = torch.nn


class Nested(nn.Module):
    """Blocks in blocks, so that more units are whole at once than there are buffers in turn."""

    def __init__(self, depth):
        super().__init__()
        self.before, self.after = nn.Linear(3, 3), nn.Linear(3, 3)
        self.inner = Nested(depth - 1) if depth else nn.Tanh()

    def forward(self, x):
        return self.after(self.inner(self.before(x)))


def batch(rank, step):
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(10 * step + rank))
    return x, x


@pytest.mark.ranks(2, timeout=120)
def test_more_units_at_once_than_buffers_have_the_same_bits(comm):
    for accumulate in (1, 2):
        states, sent = [], []
        for stage in (0, 2, 3):
            torch.manual_seed(comm.rank)
            module = nn.Sequential(Nested(4), nn.Linear(3, 2))
            options = {"units": [Nested, "1"], "stage": stage, "accumulate": accumulate}
            model = psgd.torch.shard(module, comm, **options) if stage else psgd.torch.wrap(module)
            with psgd.connect(comm, model, strategy="allreduce", lr=0.1, accumulate=accumulate) as ps:
                for step in range(6):
                    module.zero_grad()
                    ps.overlap(2)
                    module(batch(comm.rank, step)[0]).sum().backward()
                    ps.step(2)
                sent.append(getattr(ps._client, "nbytes", 0))
            states.append(model.state_dict(None) if stage else module.state_dict())
            if stage:
                model.close()
        if accumulate > 1:
            torch.manual_seed(0)
            module = nn.Sequential(Nested(4), nn.Linear(3, 2))
            batches = [[batch(rank, step) for step in range(6)] for rank in range(comm.size)]
            options = OptimizerOptions(rules.create("sgd", 0.9, 0.0), constant(0.1))
            states[0] = cases.step_by_step(module, batches, accumulate, lambda scores, y: scores.sum(), options)
        cases.same_state(states[1], states[0])
        cases.same_state(states[2], states[0])
        whole = 4 * model.layout.size // 2
        steps = 6 // accumulate
        assert sent[1] == (6 + steps) * whole
        assert sent[2] == 3 * 6 * whole


@pytest.mark.ranks(2, timeout=120)
def test_an_update_with_a_gradient_that_is_not_finite_is_omitted_by_all(comm):
    """Units in shared buffers and in memory of their own are looked at before they are reduced."""
    for stage in (2, 3):
        states = []
        for bad in (False, True):
            torch.manual_seed(0)
            module = nn.Sequential(Nested(4), nn.Linear(3, 2))
            model = psgd.torch.shard(module, comm, stage=stage, units=[Nested, "1"])
            with psgd.connect(comm, model, strategy="allreduce", lr=0.1, on_nan="skip") as ps:
                for step in range(4):
                    if step == 2 and not bad:
                        ps.step(0)
                        continue
                    ps.overlap(2)
                    loss = module(batch(comm.rank, step)[0]).sum()
                    (loss * (float("inf") if step == 2 and comm.rank else 1.0)).backward()
                    ps.step(2)
                assert ps.skipped == (bad and comm.rank)
            states.append(model.state_dict(None))
            model.close()
        cases.same_state(states[1], states[0])
