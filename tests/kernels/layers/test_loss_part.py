"""The loss in parts of the classes: that of whole rows, whichever part has the label or the largest logit."""

import itertools

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers.loss import softmax_cross_entropy
from psgd.kernels.layers.loss_part import FACTS, part_facts, part_gradient

BOTH = part_facts, part_gradient
ON_GPU = pytest.param(tuple(on_gpu(form).values[0] for form in BOTH), marks=pytest.mark.gpu)
EVERY = pytest.mark.parametrize("form", [BOTH, ON_GPU], ids=["host", "gpu"])


def in_parts(form, logits, labels, scale, cuts):
    """What each part returns, and the parts of the gradient side by side."""
    facts_of, gradient_of = form
    ends = [0, *cuts, logits.shape[1]]
    parts = [logits[:, start:stop].copy() for start, stop in itertools.pairwise(ends)]
    facts = np.full((len(parts), FACTS, len(logits)), np.nan)
    for part, mine, first in zip(parts, facts, ends, strict=False):
        assert facts_of(part, labels, first, logits.shape[1], mine) == -1
    results = [
        gradient_of(part, labels, first, scale, facts, rank)
        for rank, (part, first) in enumerate(zip(parts, ends, strict=False))
    ]
    return results, np.concatenate(parts, axis=1)


@EVERY
@pytest.mark.parametrize(
    ("n", "classes", "cuts"), [(1, 2, [1]), (7, 10, [4, 7]), (300, 10, [5]), (5, 1001, [334, 668])]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-14)])
def test_it_is_the_loss_of_the_whole(form, n, classes, cuts, dtype, tolerance):
    rng = np.random.default_rng(n)
    logits = (3 * rng.standard_normal((n, classes))).astype(dtype)
    labels = rng.integers(0, classes, n)
    results, gradient = in_parts(form, logits, labels, 1 / n, cuts)
    loss, correct = softmax_cross_entropy(logits, labels, 1 / n)
    assert len({(float(loss), int(correct)) for loss, correct in results}) == 1
    assert results[0][0] == pytest.approx(loss, rel=10 * tolerance) and results[0][1] == correct
    np.testing.assert_allclose(gradient, logits, rtol=100 * tolerance, atol=tolerance / n)


@EVERY
def test_of_equal_logits_the_first_class_counts(form):
    logits = np.ones((4, 6), np.float32)
    results, _ = in_parts(form, logits, np.array([0, 3, 1, 0]), 1.0, [2, 4])
    assert [int(correct) for _, correct in results] == [2, 2, 2]


@EVERY
def test_huge_logits_do_not_overflow(form):
    logits = np.array([[1e30, -1e30, 0], [-1e30, -1e30, -1e30]], np.float32)
    results, gradient = in_parts(form, logits, np.array([0, 1]), 1.0, [1])
    assert results[0][0] == pytest.approx(np.log(3)) and results[0][1] == 1
    np.testing.assert_allclose(gradient, [[0, 0, 0], [1 / 3, -2 / 3, 1 / 3]], rtol=1e-6)


@EVERY
@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_shows(form, where):
    logits = np.zeros((1, 3), np.float32)
    logits[0, where] = np.nan
    results, _ = in_parts(form, logits, np.array([0]), 1.0, [2])
    assert all(np.isnan(loss) for loss, _ in results)


@EVERY
@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_of_the_whole(form, label):
    logits, facts = np.zeros((2, 2), np.float32), np.empty((FACTS, 2))
    assert form[0](logits, np.array([0, label]), 1, 3, facts) == 1
