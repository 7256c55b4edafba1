"""First values of parts of a module, by the seed and a number."""

import pytest

torch = pytest.importorskip("torch")
from psgd.torch.first_draws import drawing, has_own, reset_of  # noqa: E402 -- where PyTorch is


def drawn(seed, number):
    with drawing(seed, number):
        assert not torch.is_grad_enabled()
        return torch.rand(3).tolist()


def test_what_is_drawn_depends_on_both_and_on_nothing_else():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = drawn(5, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert drawn(5, 0) == first and drawn(5, 1) != first != drawn(6, 0)


def test_own_tensors_and_what_resets_them():
    linear, attention = torch.nn.Linear(2, 2), torch.nn.MultiheadAttention(4, 2)
    assert has_own(linear) and has_own(attention) and not has_own(torch.nn.Sequential(linear))
    assert reset_of(linear) == linear.reset_parameters and reset_of(attention) == attention._reset_parameters
    assert reset_of(torch.nn.ReLU()) is None
