"""One decision on the cuts: given or measured, with a schedule to match."""

import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.models import build
from psgd.parallel.cuts import decision
from psgd.parallel.cuts.decision import Decision
from psgd.parallel.cuts.partition import LayerCost

MODEL = build("resmlp", (1, 28, 28), 10, hidden=16)
LAYERS = len(MODEL.layers)


@pytest.fixture
def measured(monkeypatch):
    """Layers that all take as long; tells the samples of the microbatches that were tried."""
    tried = []

    def measure(model, x, state_vectors):
        tried.append(len(x))
        return [LayerCost(1.0, held=100 * (2 + state_vectors), alive=1000) for _ in model.layers]

    monkeypatch.setattr(decision, "measure", measure)
    return tried


@pytest.mark.parametrize(
    ("wish", "microbatches", "size"),
    [(Decision(2, 32), 8, 4), (Decision(1, 32), 1, 32), (Decision(2, 5), 5, 1), (Decision(2, 32, 5), 5, 7)],
)
def test_microbatches(wish, microbatches, size):
    assert (wish.microbatches, wish.size) == (microbatches, size)


def test_given_cuts_are_taken_without_measuring(measured):
    assert Decision(2, 8, cut="3").cuts(MODEL, 2) == (3,)
    wish = Decision(2, 8, name="interleaved", cut="1,2,3")
    cuts = wish.cuts(MODEL, 2)
    plan = wish.plan(cuts)
    assert cuts == (1, 2, 3) and (plan.name, plan.ranks, plan.microbatches) == ("interleaved", 2, 8)
    assert measured == []
    with pytest.raises(UsageError, match="expected 1 cut for 2 stages"):
        Decision(2, 8, cut="1,2").cuts(MODEL, 2)


def test_one_stage_is_not_measured(measured):
    assert Decision(1, 8).cuts(MODEL, 2) == () and measured == []


def test_measured_cuts_are_even(measured):
    (cut,) = Decision(2, 32).cuts(MODEL, 2)
    assert abs(2 * cut - LAYERS) <= 1 and measured == [4]
    assert len(Decision(2, 32, name="interleaved").cuts(MODEL, 0)) == 2 * decision.INTERLEAVED - 1


def test_memory_is_that_of_a_ranks_stages_together(measured):
    wish, several = Decision(2, 32), Decision(2, 32, name="interleaved")
    with pytest.raises(UsageError, match="no cut of"):
        wish.cuts(MODEL, 2, memory=1000)
    with pytest.raises(UsageError, match="fits into 5,000 bytes"):
        several.cuts(MODEL, 2, memory=10_000)


def test_even_cuts_are_for_those_that_would_be_measured(measured):
    (cut,) = Decision(2, 32).even(LAYERS)
    assert abs(2 * cut - LAYERS) <= 1 and measured == []
    assert Decision(2, 32, cut="3").even(LAYERS) == Decision(1, 32).even(LAYERS) == ()
    assert len(Decision(2, 32, name="interleaved").even(LAYERS)) == 3
