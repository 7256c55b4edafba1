"""Units that are whole while a module uses them, on one rank with the others' part played."""

import copy

import pytest

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402
from harness.torch_played import Sharded  # noqa: E402

nn = torch.nn


def same_gradients(module, reference):
    for (name, p), q in zip(module.named_parameters(), reference.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        assert p.grad is None or torch.equal(p.grad, q.grad), name


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("kind", cases.KINDS)
def test_outputs_and_gradients_are_those_of_the_whole_module(kind, overlaps):
    reference = cases.made(kind)
    module = copy.deepcopy(reference)
    sharded = Sharded(module, overlaps=overlaps)
    for step in range(3):
        x, y = cases.batch(kind, 0, step)
        with torch.no_grad():
            assert torch.equal(module(x), reference(x))
        assert sharded.nothing_is_whole()
        module.zero_grad()
        reference.zero_grad()
        sharded.keeper.begin()
        losses = [cases.loss_of(each(x), y) for each in (module, reference)]
        assert sharded.nothing_is_whole(), "forward has kept nothing for backward"
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
        same_gradients(module, reference)
        sharded.keeper.end()
        assert sharded.nothing_is_whole()


def test_a_unit_is_gathered_once_forward_and_once_backward_and_the_next_one_ahead():
    module = cases.made("mlp")
    sharded = Sharded(module, overlaps=True)
    for step in range(2):
        sharded.gathers.log.clear()
        sharded.keeper.begin()
        module(torch.randn(2, 7)).sum().backward()
        sharded.keeper.end()
        assert [unit for unit, _ in sharded.gathers.log] == [0, 1, 2, 2, 1, 0]
        ahead = [ahead for _, ahead in sharded.gathers.log]
        assert ahead == ([False] * 6 if step == 0 else [False, True, True, False, True, True])


class Odd(nn.Module):
    """Recomputes, uses a weight without its gradient, and hands a loss around its result, which is in containers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.aside = None

    def forward(self, x):
        a, b = self.inner
        y = torch.utils.checkpoint.checkpoint(a, x, use_reentrant=False)
        y = {"y": (b(y) * a(x).detach(),)}
        self.aside = b(x).pow(2).mean()
        return y


def test_modules_of_odd_kinds():
    torch.manual_seed(3)
    reference = Odd()
    module = copy.deepcopy(reference)
    sharded = Sharded(module)
    x = torch.randn(3, 4)
    for each in (module, reference):
        result = each(x)["y"][0]
        each.aside.backward(retain_graph=True)
        result.sum().backward()
    same_gradients(module, reference)
    sharded.keeper.end()
    assert sharded.nothing_is_whole()


def test_what_was_done_is_repeated_without_samples():
    module = cases.made("mlp")
    sharded = Sharded(module, overlaps=True)
    sharded.keeper.begin()
    module(torch.randn(2, 7)).sum().backward()
    done = sharded.keeper.end()
    sharded.keeper.begin()
    sharded.gathers.log.clear()
    for what, unit in done:
        sharded.keeper.again(what, unit)
    assert sharded.keeper.end() == done
    assert [unit for unit, _ in sharded.gathers.log] == [0, 1, 2, 2, 1, 0]
    sharded.passes.remove()
    assert module(torch.randn(2, 7)).isnan().all(), "nothing gathers any more"
