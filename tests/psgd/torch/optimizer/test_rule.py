"""PyTorch's rules on parts of a vector, against the same optimizer on the parameters themselves."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from psgd.kernels.errors import UsageError  # noqa: E402
from psgd.torch.optimizer.group_settings import GroupSettings  # noqa: E402
from psgd.torch.optimizer.rule import ElementwiseRule, is_elementwise, runs  # noqa: E402
from psgd.torch.wrapped import Wrapped  # noqa: E402

optim = torch.optim
RULES = [
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (optim.Adam, {"weight_decay": 0.1}),
    (optim.Adam, {"amsgrad": True, "betas": (0.8, 0.95), "foreach": True}),
    (optim.AdamW, {"weight_decay": 0.3}),
    (optim.AdamW, {"fused": True}),
    (optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    (optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (optim.RMSprop, {}),
    (optim.Adadelta, {"rho": 0.8}),
    (optim.Adamax, {}),
    (optim.RAdam, {}),
    (optim.Rprop, {}),
]


def module_of():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 9), torch.nn.Linear(9, 3, bias=False))


def groups_of(module):
    return [
        {"params": [module[0].weight, module[2].weight]},
        {"params": [module[0].bias, module[1].weight, module[1].bias], "lr": 0.003},
    ]


class Case:
    """One rule on the parts of a wrapped module's vector, and an optimizer of another copy."""

    def __init__(self, kind, options, cuts):
        self.module, self.plain = module_of(), module_of()
        self.optimizer = kind(groups_of(self.module), lr=0.02, **options)
        self.expected = kind(groups_of(self.plain), lr=0.02, **options)
        self.wrapped = Wrapped(self.module, "average")
        self.params = self.wrapped.params
        self.settings = GroupSettings(self.optimizer, alike=False)
        self.loaded = {}
        self.rule = ElementwiseRule(self.optimizer, self.wrapped.slots, self.params, self.settings, self.loaded)
        self.cuts = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, self.params.size], strict=True)]
        self.state = None
        self.taken = 0
        self.random = np.random.default_rng(5)

    def begin(self):
        self.state = self.rule.rule.init(self.params)

    def step(self, scale=1.0):
        grad = np.zeros_like(self.params)
        for p, slot in zip(self.plain.parameters(), self.wrapped.slots, strict=True):
            part = self.random.standard_normal(slot.stop - slot.offset).astype(np.float32)
            grad[slot.offset : slot.stop] = part
            p.grad = torch.from_numpy(part).view(p.shape).clone() * scale
        self.expected.step()
        self.apply(grad, scale)

    def apply(self, grad, scale=1.0):
        self.taken += 1
        before = grad.copy()
        for cut in self.cuts:
            parts = tuple(each[cut] for each in self.state)
            self.rule.rule.update(self.params[cut], grad[cut], parts, 0.02, scale, self.taken)
        np.testing.assert_array_equal(grad, before)

    def check(self):
        for ours, theirs in zip(self.module.parameters(), self.plain.parameters(), strict=True):
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("cuts", [[], [16, 64, 65]])
@pytest.mark.parametrize(("kind", "options"), RULES)
def test_every_rule_is_pytorchs(kind, options, cuts):
    case = Case(kind, options, cuts)
    case.begin()
    for clock in range(6):
        case.step(scale=1.0 if clock else 0.5)
        for group in (*case.optimizer.param_groups, *case.expected.param_groups):
            group["lr"] *= 0.9
    case.check()
    theirs = case.expected.state_dict()["state"]
    order = [id(p) for group in case.expected.param_groups for p in group["params"]]
    for slot, p in zip(case.wrapped.slots, case.plain.parameters(), strict=True):
        found, expected = case.rule.state_of(slot), theirs.get(order.index(id(p)), {})
        expected = {key: value for key, value in expected.items() if isinstance(value, torch.Tensor)}
        assert set(found) == set(expected)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("kind", "options"), RULES)
def test_state_that_was_saved_or_loaded_goes_on(kind, options):
    case = Case(kind, options, [32])
    case.begin()
    for _ in range(3):
        case.step()
    saved, weights = [each.copy() for each in case.state], case.params.copy()
    loaded = copy.deepcopy({slot.name: case.rule.state_of(slot) for slot in case.wrapped.slots})

    resumed = Case(kind, options, [16])
    resumed.params[:] = weights
    resumed.begin()
    for mine, theirs in zip(resumed.state, saved, strict=True):
        mine[:] = theirs
    resumed.taken = 3

    fresh = Case(kind, options, [])
    fresh.params[:] = weights
    fresh.loaded.update({slot.parameter: loaded[slot.name] for slot in fresh.wrapped.slots})
    fresh.begin()

    for _ in range(3):
        case.step()
    case.check()
    for other in (resumed, fresh):
        other.random = np.random.default_rng(5)
        for _ in range(3):  # the gradients of the first steps
            other.random.standard_normal(sum(slot.stop - slot.offset for slot in other.wrapped.slots))
        other.expected, other.plain = kind(groups_of(other.plain), lr=0.02, **options), other.plain
        for _ in range(3):
            other.step()
        np.testing.assert_allclose(other.params, case.params, rtol=1e-6, atol=1e-7)


def test_a_server_has_its_part():
    case = Case(optim.Adam, {}, [])
    cut = slice(48, case.params.size)
    part = case.params[cut]
    state = case.rule.rule.init(part)
    assert [each.size for each in state] == [part.size] * 2
    whole = case.params[:48].copy()
    grad = np.ones_like(part)
    for p in case.plain.parameters():
        p.grad = torch.ones_like(p)
    case.expected.step()
    case.rule.rule.update(part, grad, state, 0.02, 1.0, 1)
    np.testing.assert_array_equal(case.params[:48], whole)
    for slot, p in zip(case.wrapped.slots, case.plain.parameters(), strict=True):
        if slot.offset >= 48:
            np.testing.assert_allclose(
                case.params[slot.offset : slot.stop], p.detach().numpy().ravel(), rtol=1e-6, atol=1e-7
            )
        assert case.rule.state_of(slot) is None


def test_a_gradient_without_numbers_is_left_out():
    case = Case(optim.Adam, {}, [16, 64])
    case.begin()
    case.settings.guarded = True
    case.step()
    case.apply(np.full_like(case.params, np.nan))
    assert case.settings.skipped == 1
    case.step()  # with the second step's bias correction
    case.check()


def test_single_nans_reach_the_parameters():
    case = Case(optim.SGD, {}, [])
    case.begin()
    grad = np.zeros_like(case.params)
    grad[0] = np.nan
    case.apply(grad)
    assert np.isnan(case.params[0]) and np.isfinite(case.params[1:]).all()
    assert case.settings.skipped == 0


def test_runs_of_groups():
    module = module_of()
    optimizer = optim.SGD(groups_of(module), lr=0.1)
    slots = Wrapped(module, "average").slots
    found = runs(optimizer, slots, 200)
    assert [(run.start, run.group) for run in found] == [(0, 0), (slots[1].offset, 1), (slots[4].offset, 0)]
    assert [run.stop for run in found] == [run.start for run in found[1:]] + [200]


def test_which_rules_are_elementwise():
    p = [torch.nn.Parameter(torch.ones(2, 2))]
    assert is_elementwise(optim.AdamW(p)) and is_elementwise(optim.Rprop(p))
    assert not is_elementwise(optim.NAdam(p)) and not is_elementwise(optim.Adafactor(p))

    class Mine(optim.SGD):
        pass

    assert not is_elementwise(Mine(p, lr=0.1))


def test_a_rule_that_cannot_take_a_step_here():
    module = module_of()
    optimizer = optim.AdamW(module.parameters(), capturable=True)
    wrapped = Wrapped(module, "average")
    settings = GroupSettings(optimizer, alike=False)
    with pytest.raises(UsageError, match="AdamW cannot take a step here"):
        ElementwiseRule(optimizer, wrapped.slots, wrapped.params, settings, {})


def test_a_state_of_different_steps_is_refused():
    case = Case(optim.Adam, {}, [])
    one = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(5, 7), "exp_avg_sq": torch.zeros(5, 7)}
    case.loaded[case.wrapped.slots[0].parameter] = one
    with pytest.raises(UsageError, match="same steps"):
        case.begin()
