import numpy as np

from psgd.nn.models import build


def test_it_is_one_affine_map_of_all_features():
    model = build("softmax", (2, 3), 4, np.float64)
    rng = np.random.default_rng(1)
    params = rng.normal(size=model.layout.size)
    model.bind(params, np.zeros_like(params))
    (weight, bias) = (view for view in model.layout.views(params).values())
    assert sorted(view.shape for view in (weight, bias)) == [(4,), (6, 4)]
    x, y = rng.normal(size=(5, 2, 3)), np.array([0, 1, 2, 3, 0])
    right, loss = model.evaluate(model.context(5), x, y)
    z = x.reshape(5, 6) @ weight + bias
    assert right == (z.argmax(1) == y).sum()
    np.testing.assert_allclose(loss, (np.log(np.exp(z).sum(1)) - z[range(5), y]).sum(), rtol=1e-12)
