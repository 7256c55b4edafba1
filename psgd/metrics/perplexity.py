"""Perplexity: among how many equally likely tokens a model is as unsure."""

import math


def perplexity(loss: float) -> float:
    """The exponential of a mean loss per token; infinite where that is beyond float64, NaN where the loss is."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
