"""Bytes of a module on fake tensors, against what the same step allocates."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from psgd.kernels.errors import UsageError  # noqa: E402
from psgd.torch import wrap  # noqa: E402
from psgd.torch.fake_run import FakeModule  # noqa: E402

cross_entropy = nn.functional.cross_entropy


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 10)
    )


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )


def checkpointed():
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat, self.inside = nn.Flatten(), nn.Sequential(*[nn.Linear(64, 64), nn.GELU()] * 6)
            self.last = nn.Linear(64, 10)

        def forward(self, x):
            x = torch.utils.checkpoint.checkpoint(self.inside, self.flat(x), use_reentrant=False)
            return self.last(x)

    return Saving()


def allocated(module, batch):
    """The most bytes that PyTorch's own record of allocations has in a real step."""
    x, y = torch.zeros(batch, 1, 8, 8), torch.zeros(batch, dtype=torch.int64)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    cross_entropy(module(x), y).backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        cross_entropy(module(x), y).backward()
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("make", [mlp, convolutions, checkpointed])
def test_a_step_is_what_a_real_one_allocates(make):
    fake = FakeModule(make, cross_entropy, (1, 8, 8))
    assert fake.step(256) == pytest.approx(allocated(make(), 256), rel=0.05)
    assert fake.step(512) > 1.8 * fake.step(256) - 200_000


def test_parameters_are_those_of_wrap():
    fake, real = FakeModule(convolutions, cross_entropy, (1, 8, 8)), convolutions()
    assert fake.layout == wrap(real).layout and fake.itemsize == 4
    assert fake.others == sum(buffer.nbytes for buffer in real.buffers())


def test_nothing_is_allocated():
    def huge():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 1 << 30), nn.ReLU(), nn.Linear(1 << 30, 10))

    fake = FakeModule(huge, cross_entropy, (1, 8, 8))
    assert fake.layout.size > 70 << 30 and fake.step(1000) > 4 << 40
    assert 4 << 41 > fake.evaluation(500) > 2 << 40


def test_recomputation_in_the_module_counts():
    def plain():
        return nn.Sequential(nn.Flatten(), *[nn.Linear(64, 64), nn.GELU()] * 6, nn.Linear(64, 10))

    sizes = [FakeModule(make, cross_entropy, (1, 8, 8)).step(4096) for make in (plain, checkpointed)]
    assert sizes[0] > sizes[1]


def test_a_loss_of_ones_own():
    fake = FakeModule(lambda: (mlp(), nn.MultiMarginLoss()), cross_entropy, (1, 8, 8))
    assert fake.step(8) > 0


def test_what_is_no_module_is_handed_back():
    assert FakeModule(lambda: "a model", cross_entropy, (4,)).module is None


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        y = self.layer(x)
        return y if y.sum().item() > 0 else -y


def test_a_module_that_looks_at_values_is_refused():
    fake = FakeModule(Looks, cross_entropy, (4,))
    with pytest.raises(UsageError, match="cannot be estimated on tensors without values: DataDependent"):
        fake.step(3)
    with pytest.raises(UsageError, match="cannot be estimated"):
        FakeModule(mlp, cross_entropy, (3, 3)).step(2)
