"""A small ResNet with BatchNorm under `allreduce` and under DDP with torch.optim.SGD: the same curve.

It has the same bits. Less would not do: the same DDP with two threads of PyTorch's instead of one, which only adds in
another order, is a tenth of the loss away after 100 steps (docs/pytorch.md).
"""

import numpy as np
import pytest
from harness.ddp import process_group

import psgd

torch = pytest.importorskip("torch")
nn = torch.nn
STEPS, BATCH, LR = 100, 8, 0.05


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm, self.two = nn.BatchNorm2d(after), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.last = nn.BatchNorm2d(after)
        same = before == after and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm(self.one(x)))
        return torch.relu(self.last(self.two(y)) + self.short(x))


def resnet():
    torch.manual_seed(3)
    stem = [nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    blocks = [Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def batch(worker, step):
    generator = torch.Generator().manual_seed(1000 * worker + step % 20)
    return torch.randn(BATCH, 3, 12, 12, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)


def of_ddp(comm, factor, decay):
    module, losses = resnet(), []
    model = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=factor, weight_decay=decay)
    for step in range(STEPS):
        x, y = batch(comm.rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, module


def of_psgd(comm, factor, decay):
    module, losses = resnet(), []
    model = psgd.torch.wrap(module)
    rule = {"rule": "momentum", "momentum": factor} if factor else {"rule": "sgd"}
    with psgd.connect(comm, model, strategy="allreduce", lr=LR, weight_decay=decay, **rule) as ps:
        for step in range(STEPS):
            x, y = batch(ps.worker, step)
            module.zero_grad()
            ps.overlap(BATCH)
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            ps.step(samples=BATCH, loss=loss.item())
            losses.append(loss.item())
    return losses, module


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("factor", "decay"), [(0.0, 0.0), (0.9, 5e-4)])
def test_the_curve_of_allreduce_is_that_of_ddp_bit_for_bit(comm, tmp_path, factor, decay):
    with process_group(comm, tmp_path):
        theirs, reference = of_ddp(comm, factor, decay)
        ours, module = of_psgd(comm, factor, decay)
    assert abs(theirs[-1] - theirs[0]) > 0.1, "it was trained"
    np.testing.assert_array_equal(ours, theirs)
    for one, other in zip(module.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)
