"""The norm of a whole model whose parts lie on several ranks: the same bits however it is cut."""

import math

import numpy as np
import pytest
from harness.oracle import same_error

from psgd.kernels.errors import AgreedUsageError
from psgd.nn.layout import Layout
from psgd.optim import rules
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.whole_norm import WholeNorm

SHAPES = [("embedding.weight", (7, 5)), ("linear1.weight", (6, 5)), ("linear1.bias", (6,)), ("norm.gain", (6,))]
WHOLE = Layout(SHAPES, tied={"output.weight": "embedding.weight"})


def values(name):
    """A parameter's gradient: no two alike, and sums that depend on their order."""
    number = [each for each, _ in SHAPES].index(name)
    rng = np.random.default_rng(number)
    return (rng.standard_normal(dict(SHAPES)[name]) * 10.0**number).astype(np.float32)


def expected():
    """The exact sum, rounded once: neither parts nor stages nor ranks are in it."""
    return math.fsum(float(x) ** 2 for name, _ in SHAPES for x in values(name).reshape(-1))


def held(names, rows=None):
    """A layout of these parameters, of linear1 only the rows, and the gradient in its vector."""
    tied = dict(WHOLE.tied)
    shapes, parts, arrays = [], {}, []
    for name in names:
        array = values(tied.get(name, name))
        if rows is not None and name.startswith("linear1"):
            parts[name] = (array.shape, (rows.start,) + (0,) * (array.ndim - 1))
            array = array[rows]
        shapes.append((name, array.shape))
        arrays.append(array)
    layout = Layout(shapes, parts=parts)
    vector = np.full(layout.size, np.nan, np.float32)  # padding counts nothing
    for name, array in zip(names, arrays, strict=True):
        layout.views(vector)[name][...] = array
    return layout, vector


STAGES = {
    1: [["embedding.weight", "linear1.weight", "linear1.bias", "norm.gain"]],
    2: [["embedding.weight", "linear1.weight"], ["linear1.bias", "norm.gain", "output.weight"]],
    3: [["norm.gain", "output.weight"], ["linear1.weight", "linear1.bias"], ["embedding.weight"]],
}


@pytest.mark.ranks(1, 2, 3)
def test_stages_have_the_bits_of_one_rank_and_tied_parameters_count_once(comm):
    layout, grad = held(STAGES[comm.size][comm.rank])
    norm = WholeNorm(comm, layout, WHOLE)
    assert norm.total(norm.local(grad, 0)) == expected()


@pytest.mark.ranks(4)
def test_two_stages_of_two_tensor_ranks_have_the_bits_of_one_rank(comm):
    stage, tensor = divmod(comm.rank, 2)
    names = [["embedding.weight", "linear1.weight", "linear1.bias"], ["norm.gain", "output.weight"]][stage]
    layout, grad = held(names, [slice(0, 4), slice(4, 6)][tensor])
    norm = WholeNorm(comm, layout, WHOLE)
    assert norm.total(norm.local(grad, 0)) == expected()


@pytest.mark.ranks(2)
def test_parts_in_any_order_of_the_ranks_have_the_bits_of_one_rank(comm):
    layout, grad = held([name for name, _ in SHAPES], [slice(4, 6), slice(0, 4)][comm.rank])
    norm = WholeNorm(comm, layout, WHOLE)
    assert norm.total(norm.local(grad, 0)) == expected()


@pytest.mark.ranks(2)
def test_shards_of_a_vector_add_up_to_it(comm):
    layout, grad = held(STAGES[2][comm.rank])
    norm = WholeNorm(comm, layout, WHOLE)
    cut = layout.parameters[0].offset + 5
    sums = norm.local(grad[:cut], 0) + norm.local(grad[cut:], cut)
    assert norm.total(sums) == expected()
    assert not norm.local(grad[layout.size :], layout.size).any()


@pytest.mark.ranks(2)
def test_each_part_takes_the_step_of_the_whole(comm):
    layout, grad = held(STAGES[2][comm.rank])
    clip = 0.5 * math.sqrt(expected())
    options = OptimizerOptions(rules.sgd(), lambda samples: 1.0, clip, squares=WholeNorm(comm, layout, WHOLE))
    params = np.zeros(layout.size, np.float32)
    Optimizer(params, options).take(grad, 1.0, 0)
    for name, view in layout.views(params).items():
        np.testing.assert_allclose(view, -0.5 * layout.views(grad)[name], rtol=1e-6)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([["embedding.weight"], ["linear1.weight", "linear1.bias"]], ["6 elements of norm.gain", "have 0"]),
        ([["embedding.weight", "output.weight"], ["linear1.weight"]], ["6 elements of linear1.bias"]),
    ],
)
def test_parts_that_are_not_the_whole_are_refused(comm, stages, words):
    layout, _ = held(stages[comm.rank])
    same_error(comm, lambda: WholeNorm(comm, layout, WHOLE), AgreedUsageError, *words)


@pytest.mark.ranks(2)
def test_parts_that_overlap_or_are_unknown_are_refused(comm):
    names = [name for name, _ in SHAPES]
    layout, _ = held(names, [slice(0, 4), slice(3, 6)][comm.rank])
    same_error(comm, lambda: WholeNorm(comm, layout, WHOLE), AgreedUsageError, "linear1.weight", "overlap")
    other = Layout([("other", (3,))])
    same_error(comm, lambda: WholeNorm(comm, other, WHOLE), AgreedUsageError, "rank 0", "the whole model has not")
