"""A context begins as one of training; a key makes its draws those of its first sample."""

import numpy as np
import pytest

pytest.importorskip("torch")
from psgd.torch.pieces.graph_context import GraphContext


def test_draws_are_by_the_first_sample_and_switch_training_on():
    one, other = GraphContext(wants_dx=True), GraphContext(wants_dx=False)
    assert one.draws.on and not one.draws.wanted and one.key is None and one.xp is np
    one.draws.on = False
    one.draw(7, np.array([30, 2]))
    assert one.draws.on and one.key == (7, 30)
    assert other.key is None and other.draws is not one.draws
