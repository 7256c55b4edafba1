import numpy as np

from psgd.nn.models import build


def test_it_has_one_hidden_layer_with_relu():
    model = build("mlp", (6,), 3, np.float64, hidden=5)
    rng = np.random.default_rng(1)
    params = rng.normal(size=model.layout.size)
    model.bind(params, np.zeros_like(params))
    w, b, v, c = model.layout.views(params).values()
    assert [each.shape for each in (w, b, v, c)] == [(6, 5), (5,), (5, 3), (3,)]
    x, y = rng.normal(size=(4, 6)), np.array([0, 1, 2, 0])
    right, loss = model.evaluate(model.context(4), x, y)
    z = np.maximum(x @ w + b, 0) @ v + c
    assert right == (z.argmax(1) == y).sum()
    np.testing.assert_allclose(loss, (np.log(np.exp(z).sum(1)) - z[range(4), y]).sum(), rtol=1e-12)
