import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.models import build


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 4)])
def test_it_mixes_tokens_then_features_twice(shape):
    model = build("resmlp", shape, 3, np.float64, hidden=6)
    rng = np.random.default_rng(1)
    params = rng.normal(size=model.layout.size) * 0.3
    model.bind(params, np.zeros_like(params))
    first, first_b, *blocks, last, last_b = model.layout.views(params).values()
    x, y = rng.normal(size=(4, *shape)), np.array([0, 1, 2, 0])
    right, loss = model.evaluate(model.context(4), x, y)
    tokens = x if len(shape) == 2 else x.transpose(0, 2, 3, 1).reshape(4, 5, 8)  # a row of pixels is a token
    h = tokens @ first + first_b
    for k in range(2):
        across, across_b, wide, wide_b, back, back_b = blocks[6 * k : 6 * k + 6]
        h = h + (h.transpose(0, 2, 1) @ across + across_b).transpose(0, 2, 1)
        h = h + np.maximum(h @ wide + wide_b, 0) @ back + back_b
    z = h.mean(1) @ last + last_b
    assert right == (z.argmax(1) == y).sum()
    np.testing.assert_allclose(loss, (np.log(np.exp(z).sum(1)) - z[range(4), y]).sum(), rtol=1e-10)


def test_flat_samples_are_refused():
    with pytest.raises(UsageError, match=r"model resmlp needs images .* or samples"):
        build("resmlp", (7,), 3)
