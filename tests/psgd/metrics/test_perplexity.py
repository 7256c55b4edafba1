"""Perplexity of losses that are usual, and of those that are not."""

import math

import pytest

from psgd.metrics.perplexity import perplexity


def test_a_guess_among_n_tokens_has_perplexity_n():
    assert perplexity(math.log(256)) == pytest.approx(256)
    assert perplexity(0.0) == 1


def test_losses_without_a_finite_one():
    assert perplexity(1e9) == math.inf
    assert perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))
