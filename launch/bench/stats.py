"""The few statistics that benchmarks report: median, mean, and Student's confidence interval of a mean."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

__all__ = ["fmean", "half_width", "median", "ratio", "student_cdf", "student_quantile"]


def student_cdf(t: float, freedom: float) -> float:
    """Probability that Student's t with `freedom` degrees of freedom is at most `t`.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.1, through the incomplete beta function.
    """
    tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, freedom / (freedom + t * t))
    return tail if t < 0 else 1.0 - tail


def student_quantile(probability: float, freedom: float) -> float:
    """The t below which Student's distribution has `probability` (between 0 and 1, both excluded)."""
    if probability < 0.5:
        return -student_quantile(1.0 - probability, freedom)
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return 0.5 * (low + high)


def half_width(values: Sequence[float], confidence: float = 0.95) -> float | None:
    """Half the width of the confidence interval of the mean: t·s/√n; None for fewer than two values."""
    if len(values) < 2:
        return None
    quantile = student_quantile(0.5 + 0.5 * confidence, len(values) - 1)
    return quantile * stdev(values) / math.sqrt(len(values))


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Their quotient; None where either is missing or the denominator is 0."""
    return None if numerator is None or not denominator else numerator / denominator


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges fast on one side of the mean only; the other side is its complement.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of Abramowitz and Stegun 26.5.8, evaluated by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0), tiny)
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d, tiny)
            c = _away_from_zero(1.0 + term / c, tiny)
            change *= d * c
        value *= change
        if abs(change - 1.0) < 1e-15:
            break
    return value


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
