"""PyTorch's transformer is psgd's: the same scores and gradients from the same weights."""

import numpy as np
import pytest

from psgd.nn.models import build

torch = pytest.importorskip("torch")


def test_it_is_the_same_model():
    from psgd.launch.bench.peers import torch_gpt

    model = build("gpt", (7,), 13, np.float64, tokens=True, layers=2, width=12, heads=3)
    rng = np.random.default_rng(0)
    params = model.init(0) + 0.2 * rng.standard_normal(model.layout.size)
    grads = np.full_like(params, np.nan)
    model.bind(params, grads)
    x, y = rng.integers(0, 13, (2, 4, 7))
    loss = model.gradient(model.context(4), x.astype(float), y)
    tied = dict(model.layout.tied)
    module = torch_gpt.GPT(13, 7, 2, 12, 3).double()
    torch_gpt.take(module, {name: a for name, a in model.layout.for_torch(params).items() if name not in tied})
    scores = module(torch.from_numpy(x))
    theirs = torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(y).flatten())
    assert theirs.item() == pytest.approx(loss, rel=1e-13)
    theirs.backward()
    ours = {name: torch.from_numpy(a) for name, a in model.layout.for_torch(grads).items() if name not in tied}
    found = [parameter.grad for parameter in module.parameters()]
    torch_gpt.take(module, {name: a.numpy() for name, a in ours.items()})  # in the module's order
    for own, other in zip(module.parameters(), found, strict=True):
        np.testing.assert_allclose(own.detach(), other, rtol=1e-10, atol=1e-13)


def test_a_step_is_adams():
    from psgd.launch.bench.peers import torch_gpt

    module = torch_gpt.GPT(5, 3, 1, 4, 1)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    step = torch_gpt.Steps(module, 1e-2)
    x = torch.tensor([[0, 1, 2]])
    losses = [step(x, x) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert all((p != old).any() for p, old in zip(module.parameters(), before, strict=True))
