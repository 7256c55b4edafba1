"""The PyTorch twins compute what psgd's models compute, from the same first parameters."""

import numpy as np
import pytest

from psgd.nn import models

SHAPES = [("softmax", (1, 8, 8)), ("mlp", (20,)), ("mlp", (3, 5, 4)), ("cnn", (1, 8, 8)), ("cnn", (3, 9, 11)),
          ("resmlp", (5, 6)), ("resmlp", (1, 8, 8)), ("resmlp", (3, 5, 4))]  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_same_logits(name, shape):
    torch = pytest.importorskip("torch")
    from psgd.launch.bench.peers.torch_model import build

    model = models.build(name, shape, 7)
    model.bind(model.init(3))
    x = np.random.default_rng(1).standard_normal((5, *shape)).astype(np.float32)
    with torch.no_grad():
        theirs = build(name, shape, 7, 3)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(theirs, model.logits(model.context(5), x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_same_number_of_parameters(name, shape):
    pytest.importorskip("torch")
    from psgd.launch.bench.peers.torch_model import build

    ours = sum(p.size for p in models.build(name, shape, 7).layout.parameters)
    assert sum(p.numel() for p in build(name, shape, 7, 0).parameters()) == ours
