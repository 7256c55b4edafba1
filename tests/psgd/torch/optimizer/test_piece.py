"""PyTorch's optimizer on one part of the vector: the groups' options as they are now, and state in psgd's arrays."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from psgd.torch.optimizer.piece import Piece, Stretch  # noqa: E402


def test_a_part_that_begins_and_ends_inside_stretches():
    a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 1.0}], lr=0.5, momentum=0.5)
    like = {"momentum_buffer": torch.zeros(2)}
    params, scratch, state = np.zeros(6, np.float32), np.zeros(6, np.float32), np.zeros(6, np.float32)
    stretches = [Stretch(0, 6, 0), Stretch(6, 8, 1), Stretch(8, 20, 0)]
    piece = Piece(optimizer, stretches, 4, params, scratch, [like, like])
    grad = np.arange(1, 7, dtype=np.float32)
    piece.step(grad, 2.0, 0, {"momentum_buffer": state})
    rates = np.array([0.5, 0.5, 1.0, 1.0, 0.5, 0.5])
    np.testing.assert_array_equal(params, -2 * rates * grad)
    np.testing.assert_array_equal(state, 2 * grad)
    optimizer.param_groups[1]["lr"] = 0.0
    before = params.copy()
    state[:] = 0  # it is this memory that counts
    piece.step(grad, 1.0, 1, {"momentum_buffer": state})
    np.testing.assert_array_equal(params - before, -np.array([0.5, 0.5, 0, 0, 0.5, 0.5]) * grad)
    np.testing.assert_array_equal(state, grad)


def test_the_trial_tells_what_a_rule_keeps():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], amsgrad=True)
    ones = np.ones(2, np.float32)
    piece = Piece(optimizer, [Stretch(0, 2, 0)], 0, np.zeros(2, np.float32), ones, [{}], optimizer.param_groups)
    found = piece.trial()
    assert {name for name, value in found.items() if value.shape} == {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert found["step"] == 1
