"""The t distribution against closed forms and published tables; intervals against their definition."""

import math

import pytest

from psgd.launch.bench.stats import half_width, ratio, student_cdf, student_quantile

PROBABILITIES = [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.975, 0.999]


@pytest.mark.parametrize("p", PROBABILITIES)
def test_one_degree_is_cauchy(p):
    assert student_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_two_degrees(p):
    t = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    assert student_quantile(p, 2) == pytest.approx(t, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("t", [-3.0, -1.0, 0.0, 0.25, 2.5, 40.0])
def test_four_degrees(t):
    s = t / math.sqrt(4 + t * t)
    assert student_cdf(t, 4) == pytest.approx(0.5 + 0.75 * (s - s**3 / 3), abs=1e-13)


@pytest.mark.parametrize(("freedom", "t"), [(3, 3.1824), (4, 2.7764), (9, 2.2622), (29, 2.0452), (120, 1.9799)])
def test_table_of_the_two_sided_95_percent(freedom, t):
    assert student_quantile(0.975, freedom) == pytest.approx(t, abs=5e-5)


def test_many_degrees_are_normal():
    assert student_cdf(1.0, 1e7) == pytest.approx(0.5 * (1 + math.erf(1 / math.sqrt(2))), abs=1e-7)


def test_half_width():
    # n = 3: s = 2, t(0.975, 2) = 0.95 sqrt(2 / (1 - 0.95^2))
    t = 0.95 * math.sqrt(2 / (1 - 0.95**2))
    assert half_width([1.0, 3.0, 5.0]) == pytest.approx(t * 2 / math.sqrt(3), rel=1e-9)
    assert half_width([2.0, 2.0]) == 0
    assert half_width([2.0]) is None


def test_ratio():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is None
    assert ratio(1.0, None) is None
    assert ratio(1.0, 0.0) is None
