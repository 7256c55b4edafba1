"""Hooks by which a module's units are whole where it uses them."""

import copy

import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402
from harness.torch_played import Sharded  # noqa: E402

nn = torch.nn


def test_a_part_that_is_called_by_itself_is_whole_as_well():
    reference = cases.made("encoder")
    module = copy.deepcopy(reference)
    sharded = Sharded(module)
    tokens = cases.batch("encoder", 0, 0)[0]
    assert torch.equal(module.head(module.embed(tokens)), reference.head(reference.embed(tokens)))
    assert sharded.nothing_is_whole()


def test_an_error_in_a_pass_leaves_nothing_whole():
    module = cases.made("mlp")
    sharded = Sharded(module)
    with pytest.raises(RuntimeError):
        module(torch.randn(2, 8))
    assert sharded.nothing_is_whole()
    assert module(torch.randn(2, 7)).isfinite().all()


class Shows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.weight[:2]


def test_a_view_of_a_parameter_as_the_result_is_refused():
    module = nn.Sequential(Shows())
    sharded = Sharded(module)
    with pytest.raises(UsageError, match="got a view of a parameter"):
        module(torch.ones(1))
    assert sharded.nothing_is_whole()
