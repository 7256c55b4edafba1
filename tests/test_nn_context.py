"""Contexts: who made them, where and how large, and what a model adds to a stage's."""

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.stage import Stage


def test_a_stages_and_a_models():
    stage, model = Stage([Linear(3)], (2,)), Model([Linear(3)], (2,))
    ours, theirs = stage.context(5), model.context(5)
    assert (ours.batch, ours.xp, ours.owner, len(ours.states), ours.wants_dx) == (5, np, stage, 1, False)
    assert ours.output is ours.labels is ours.dlogits is theirs.dlogits is None
    assert theirs.labels.shape == (5,) and theirs.labels.dtype == np.int64
    assert Model([Linear(3, relu=True)], (2,)).context(5).dlogits.shape == (5, 3)


def test_anothers_context_is_refused():
    one, two = (Stage([Linear(3)], (2,)) for _ in range(2))
    one.bind(np.zeros(one.layout.size, np.float32))
    with pytest.raises(UsageError, match="another model's"):
        one.forward(two.context(5), np.zeros((5, 2), np.float32))
