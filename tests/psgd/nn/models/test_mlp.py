import os

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
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


def test_more_parameters_than_a_machine_holds_need_several_ranks():
    hidden = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16  # twice the memory, in 8 numbers each
    with pytest.raises(UsageError, match=r"model mlp: its [\d,]+ parameters take .* GB, this machine has"):
        build("mlp", (4,), 3, np.float32, hidden=hidden)
    with pytest.raises(UsageError, match="GB on each of 2 ranks, this machine has"):
        build("mlp", (9,), 3, np.float32, hidden=hidden, ranks=2)
    assert build("mlp", (4,), 3, np.float32, hidden=hidden, ranks=3).layout.size >= 8 * hidden
