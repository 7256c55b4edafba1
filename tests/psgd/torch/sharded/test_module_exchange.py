"""Units in buffers that they share, and in memory of their own where those are taken."""

import pytest

import psgd

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
                    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(10 * step + comm.rank))
                    module(x).sum().backward()
                    ps.step(2)
                sent.append(getattr(ps._client, "nbytes", 0))
            states.append(model.state_dict(None) if stage else module.state_dict())
            if stage:
                model.close()
        cases.same_state(states[1], states[0])
        cases.same_state(states[2], states[0])
        whole = 4 * model.layout.size // 2
        steps = 6 // accumulate
        assert sent[1] == 2 * steps * whole
        assert sent[2] == (2 * 6 + steps) * whole
