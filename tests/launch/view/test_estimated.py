"""Estimates of what a user's file makes: modules of PyTorch, models of psgd's layers, and what cannot be."""

import pytest

from psgd.config import configure
from psgd.kernels.errors import UsageError
from psgd.launch.view import estimated

MODULE = """
import torch
from torch import nn

def make(data):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, data.classes))

def huge():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1 << 34), nn.Linear(1 << 34, 10))

class Looks(nn.Linear):
    def forward(self, x):
        y = super().forward(x.flatten(1))
        return y if y.sum() > 0 else -y

def looks():
    return Looks(64, 10)

def layers():
    from psgd.nn.models import build
    return build("mlp", (1, 8, 8), 10, hidden=16)

def neither():
    return 3
"""


@pytest.fixture
def of(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return lambda function, **options: estimated.of_config(configure(model=f"{path}:{function}", **options), 1, 2)


def test_a_module_is_counted_as_wrap_has_it(of):
    run = of("make", optimizer="momentum", strategy="sync")
    worker, server = run.ranks
    size = run.parameters * 4
    assert size >= 4 * (64 * 300 + 300 + 600 + 3010) and worker.rows["parameters"] == worker.rows["gradients"] == size
    assert server.rows == {"parameters": size, "optimizer state": size}
    assert worker.rows[estimated.BUFFERS] == 2 * 4 * 300 + 8 and worker.rows["activations"] > 32 * 300 * 4
    said = run.verdict(worker.total - 1, "cpu")
    assert "the batch does not fit" in said[0] and "--batch-size 31 fits" in said[1]


def test_nothing_is_allocated_for_it(of):
    assert of("huge").ranks[0].rows["parameters"] > 1 << 40


def test_layers_of_ones_own_are_as_by_name(of):
    for options in ({}, {"recompute": "all"}, {"mesh": "tensor=2", "strategy": "allreduce"}):
        named = estimated.of_config(configure(hidden=16, **options), 1, 2)
        assert of("layers", **options).ranks == named.ranks


def test_a_module_that_is_shared_out(of):
    """All of them are of Sequential, so each layer is a unit; they take turns in two buffers."""
    for device in ("cpu", "cuda"):
        how = {"optimizer": "adam", "strategy": "allreduce", "device": device}
        whole, part = (of("make", **how, shard=shard).ranks[0].rows for shard in (1, 3))
        assert part["parameters"] == part["gradients"] == pytest.approx(whole["parameters"] / 2, rel=0.001)
        assert part["units under way"] == pytest.approx(4 * 2 * (64 * 300 + 300 + 600), rel=0.001)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("looks", {}, "looks: cannot be estimated on tensors without values: DataDependent"),
        ("neither", {}, "expected a torch.nn.Module or a psgd.nn.model.Model, got int"),
        ("missing", {}, "has no function missing"),
        ("make", {"recompute": "all"}, "make: --recompute all: expected a model of psgd's own layers"),
        ("make", {"device": "cuda", "offload": "parameters"}, "--offload parameters: expected a model of psgd's own"),
    ],
)
def test_what_cannot_be_is_one_line(of, function, options, said):
    with pytest.raises(UsageError, match=said) as caught:
        of(function, **options)
    assert "\n" not in str(caught.value)
