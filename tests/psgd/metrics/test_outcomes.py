"""Precision, recall and F1 against their definitions, class by class, and published values."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.metrics.outcomes import Outcomes


def counted(labels, predicted, parts=1, xp=np):
    found = Outcomes()
    for rows in np.array_split(np.arange(len(labels)), parts):
        found.add(xp.asarray(labels)[rows], xp.asarray(predicted)[rows])
    return found


def definitions(labels, predicted):
    """Means over classes, by counting one pair after the other."""
    pairs = list(zip(labels.tolist(), predicted.tolist(), strict=True))
    rows = []
    for each in sorted({value for pair in pairs for value in pair}):
        right = sum(pair == (each, each) for pair in pairs)
        called, meant = sum(p == each for _, p in pairs), sum(y == each for y, _ in pairs)
        precision, recall = right / called if called else 0.0, right / meant if meant else 0.0
        rows.append((precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0))
    return dict(zip(("precision", "recall", "f1"), np.mean(rows, axis=0), strict=True))


@pytest.mark.parametrize("xp", [np, pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("parts", [1, 7])
def test_the_definitions(parts, xp):
    rng = np.random.default_rng(0)
    labels = rng.integers(6, size=200)
    predicted = np.where(rng.random(200) < 0.6, labels, rng.integers(9, size=200))
    found = counted(labels, predicted, parts, cupy() if xp == "gpu" else xp)
    assert found.means() == pytest.approx(definitions(labels, predicted))
    assert found.counts.sum(axis=1).tolist() == [200, 200, (labels == predicted).sum()]


def test_scikit_learns_example():
    """Of its manual: `f1_score(y_true, y_pred, average="macro")` is 0.26..., precision 0.22..., recall 0.33..."""
    found = counted(np.array([0, 1, 2, 0, 1, 2]), np.array([0, 2, 1, 0, 0, 1])).means()
    assert found == pytest.approx({"precision": 2 / 9, "recall": 1 / 3, "f1": 4 / 15})


def test_a_class_without_labels_or_predictions_does_not_count():
    assert counted(np.array([5, 9]), np.array([5, 9])).means() == {"precision": 1, "recall": 1, "f1": 1}


def test_counts_of_several_ranks_add_up_and_nothing_is_nothing():
    rng = np.random.default_rng(1)
    labels, predicted = rng.integers(5, size=(2, 90))
    total = Outcomes()
    for rows in (slice(0, 0), slice(0, 11), slice(11, 90)):
        total.merge(counted(labels[rows], predicted[rows]).counts.tolist())
    assert total.means() == counted(labels, predicted).means()
    assert Outcomes().means() == {}
    assert Outcomes(Outcomes().counts.tolist()).means() == {}


def test_tokens_of_samples_count_each():
    rng = np.random.default_rng(2)
    labels, predicted = rng.integers(5, size=(2, 9, 10))
    found = Outcomes()
    found.add(labels, predicted)
    assert found.means() == counted(labels.reshape(-1), predicted.reshape(-1)).means()
