"""A transformer as a pipeline: the whole gradient, its table on both ends; right answers are shares of tokens."""

import numpy as np
import pytest

from psgd.nn.models import build
from psgd.parallel.pipeline import Pipeline

N, TOKENS = 5, 6
TIED = ("embedding1.weight", "unembedding1.weight")


@pytest.mark.ranks(2, 3, timeout=120)
def test_gradient_and_evaluation_are_the_whole_models(comm):
    def made():
        return build("gpt", (TOKENS,), 11, np.float64, tokens=True, layers=2, width=8, heads=2)

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 11, (2, N, TOKENS))
    x = x.astype(np.float64)
    whole = made()
    params = whole.init(1)
    grads = np.empty_like(params)
    whole.bind(params, grads)
    context = whole.context(N)
    loss = whole.gradient(context, x, y)
    right, loss_sum = whole.evaluate(context, x, y)
    assert right != int(right)
    cuts = {2: (3,), 3: (2, 5)}[comm.size]
    with Pipeline(comm, made(), cuts, batch=N, microbatches=3) as pipeline:
        mine = pipeline.init(1)
        slopes = np.full_like(mine, np.nan)
        pipeline.bind(mine, slopes)
        assert pipeline.gradient(N, x, y) == pytest.approx(loss, rel=1e-12)
        expected, names = whole.layout.views(grads), []
        for name, found in pipeline.layout.views(slopes).items():
            names.append(name)
            np.testing.assert_allclose(found, expected[name], rtol=1e-10, atol=1e-13)
        assert (TIED[0] in names) == (comm.rank == 0)
        assert (TIED[1] in names) == (comm.rank == comm.size - 1)
        found = pipeline.evaluate(N, x, y)
    assert found == pytest.approx((right, loss_sum), rel=1e-12)
    assert len(set(comm.allgather(found))) == 1
