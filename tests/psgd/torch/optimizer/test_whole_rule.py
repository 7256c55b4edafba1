"""Rules of any kind on the whole vector, against the same optimizer on the parameters themselves."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from psgd.kernels.errors import UsageError  # noqa: E402
from psgd.torch.optimizer.group_settings import GroupSettings  # noqa: E402
from psgd.torch.optimizer.whole_rule import WholeRule  # noqa: E402
from psgd.torch.wrapped import Wrapped  # noqa: E402


class Normed(torch.optim.Optimizer):
    """A rule that looks at a parameter as a whole, with an attribute and a constructor of its own."""

    def __init__(self, params, speed, power):
        super().__init__(params, {"lr": speed})
        self.power = power

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                p.sub_(group["lr"] * p.grad / p.grad.norm() ** self.power / state["count"])


KINDS = [
    lambda params: torch.optim.Adafactor(params, lr=0.02),
    lambda params: torch.optim.NAdam(params, lr=0.02),
    lambda params: Normed(params, 0.1, 2),
]


def module_of():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 9))


def rule_of(make, loaded=()):
    module = module_of()
    optimizer = make(list(module.parameters()))
    wrapped = Wrapped(module, "average")
    settings = GroupSettings(optimizer, alike=False)
    rule = WholeRule(optimizer, wrapped.slots, wrapped.params, settings, dict(loaded))
    assert rule.rule.init(wrapped.params) == ()
    return module, optimizer, wrapped, rule, settings


def gradients(module, wrapped, clock):
    """Made for a plain module, as a vector too."""
    vector = np.zeros_like(wrapped.params)
    generator = torch.Generator().manual_seed(clock)
    for slot, p in zip(wrapped.slots, module.parameters(), strict=True):
        p.grad = torch.randn(p.shape, generator=generator)
        vector[slot.offset : slot.stop] = p.grad.numpy().ravel()
    return vector


@pytest.mark.parametrize("make", KINDS)
def test_rules_are_pytorchs(make):
    module, optimizer, wrapped, rule, settings = rule_of(make)
    plain = module_of()
    expected = make(list(plain.parameters()))
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (optimizer, expected)]
    for clock in range(5):
        rule.rule.update(wrapped.params, gradients(plain, wrapped, clock), (), 1.0, 1.0, clock + 1)
        expected.step()
        optimizer._opt_called = True
        for scheduler in schedulers:
            scheduler.step()
        if clock == 2:
            rule.rule.update(wrapped.params, np.full_like(wrapped.params, np.nan), (), 1.0, 1.0, clock + 1)
            assert settings.skipped == 1
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    for slot, p in zip(wrapped.slots, plain.parameters(), strict=True):
        assert set(rule.state_of(slot)) == set(expected.state[p])


def test_a_loaded_state_goes_on():
    make = KINDS[2]
    module, _, wrapped, rule, _ = rule_of(make)
    assert rule.state_of(wrapped.slots[0]) is None
    rule._loaded.update({p: {"count": 7} for p in module.parameters()})
    plain = module_of()
    expected = make(list(plain.parameters()))
    for p in plain.parameters():
        expected.state[p] = {"count": 7}
    rule.rule.update(wrapped.params, gradients(plain, wrapped, 0), (), 1.0, 1.0, 1)
    expected.step()
    assert rule.state_of(wrapped.slots[0]) == {"count": 8}
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_part_is_refused():
    _, _, wrapped, rule, _ = rule_of(KINDS[0])
    rule.rule.update(wrapped.params[:0], wrapped.params[:0], (), 1.0, 1.0, 1)
    with pytest.raises(UsageError, match="whole vector"):
        rule.rule.update(wrapped.params[:16], wrapped.params[:16], (), 1.0, 1.0, 1)
