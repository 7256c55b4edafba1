"""Curves and bars have the numbers of the runs."""

import numpy as np
import pytest

from psgd.launch.plot import curves
from psgd.launch.plot.log import Run

pyplot = pytest.importorskip("matplotlib.pyplot")
pyplot.switch_backend("agg")


def run(name, losses, staleness=None):
    made = Run(name)
    made.progress = [(float(i), 10.0 * i, loss) for i, loss in enumerate(losses)]
    made.tests = [(1.0, 10.0, 0.5), (2.0, 20.0, 0.75)]
    made.staleness = staleness or {}
    return made


def test_curves():
    figure, axes = pyplot.subplots(2, 2, squeeze=False)
    curves.curves(axes, [run("a", [4.0, 2.0, 1.0]), run("b", [3.0, 2.0])])
    lines = axes[0][1].get_lines()
    assert [line.get_label() for line in lines] == ["a", "b"]
    assert lines[0].get_xdata().tolist() == [0, 10, 20] and lines[0].get_ydata().tolist() == [4, 2, 1]
    assert axes[1][0].get_lines()[0].get_ydata().tolist() == [0.5, 0.75]
    assert [axes[0][0].get_yscale(), axes[0][0].get_xlabel()] == ["linear", "time (s)"]
    pyplot.close(figure)


@pytest.mark.parametrize(("losses", "scale"), [([4.0, 1.0], "linear"), ([4.0, 0.1], "log"), ([4.0, 0.0], "linear")])
def test_decades_are_logarithmic(losses, scale):
    figure, axes = pyplot.subplots(1, 2, squeeze=False)
    curves.curves(axes, [run("a", losses)])
    assert axes[0][0].get_yscale() == scale
    pyplot.close(figure)


def test_staleness_is_shares_side_by_side():
    figure, axis = pyplot.subplots()
    curves.staleness(axis, [run("a", [1.0], {0: 3, 1: 1}), run("b", [1.0], {0: 5})])
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axis.patches]
    np.testing.assert_allclose(bars, [(-0.2, 0.75), (0.8, 0.25), (0.2, 1.0)])
    pyplot.close(figure)


def test_colours_repeat():
    assert curves.color(0) == curves.color(len(curves.COLORS)) != curves.color(1)
