"""Gradients of one parameter with two names."""

import numpy as np

from psgd.nn.linear import Linear
from psgd.nn.sequential import fit
from psgd.nn.shared_gradients import SharedGradients


def test_without_shared_parameters_nothing_is_set_apart():
    steps, _ = fit([Linear(3), Linear(3)], (3,))
    shared = SharedGradients(steps, {}, np.dtype(np.float32))
    grads = [(np.ones((3, 3)), np.ones(3)), (np.ones((3, 3)), np.ones(3))]
    assert shared.apart(grads, np) is grads


def test_the_second_name_has_a_buffer_that_is_added_to_the_first():
    steps, _ = fit([Linear(3), Linear(3)], (3,))
    shared = SharedGradients(steps, {"linear2.weight": "linear1.weight"}, np.dtype(np.float32))
    first = np.full((3, 3), 2, np.float32)
    grads = shared.apart([(first, np.ones(3, np.float32)), (first, np.ones(3, np.float32))], np)
    assert grads[0][0] is first and not np.shares_memory(grads[1][0], first)
    grads[1][0][...] = 5
    shared.join(1, grads[1])
    assert (first == 2).all()
    shared.join(0, grads[0])
    assert (first == 7).all()
