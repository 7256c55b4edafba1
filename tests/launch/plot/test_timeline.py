"""The timeline as it is drawn: heights read back from the picture's own polygons."""

import numpy as np
import pytest

from psgd.launch.plot import timeline
from psgd.launch.plot.log import Run


def test_shares_of_parts():
    edges = np.array([0.0, 1.0, 2.0, 4.0])
    np.testing.assert_allclose(timeline.shares([(1.5, 3.0), (0.25, 0.5)], edges), [0.25, 0.5, 0.5])
    np.testing.assert_allclose(timeline.shares([(-1.0, 9.0)], edges), [1, 1, 1])
    np.testing.assert_allclose(timeline.shares([(5.0, 9.0)], edges), [0, 0, 0])
    np.testing.assert_allclose(timeline.shares([(0.0, 0.75), (0.5, 1.0)], edges), [1, 0, 0])  # overlapping


def drawn(run, window=None):
    """Seconds of the drawn colours by worker: {(worker, colour): seconds}, and the legend's texts."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    colors = pytest.importorskip("matplotlib.colors")
    axis = figure.subplots()
    timeline.timeline(axis, run, window)
    seconds = {}
    for patch in axis.patches:
        color = colors.to_hex(patch.get_facecolor())
        if hasattr(patch, "get_width"):
            worker, long = round(patch.get_y() + patch.get_height() / 2), patch.get_width()
        else:
            values, edges, base = patch.get_data()
            worker = round(base.max() - 0.4)
            long = float(np.sum((base - values) / 0.8 * np.diff(edges)))
        seconds[worker, color] = seconds.get((worker, color), 0.0) + long
    return seconds, [text.get_text() for text in axis.get_legend().get_texts()]


def test_each_wait_has_its_length_and_the_colour_of_whom_it_was_for():
    waits = [(0, 2, 0.1234, 0.4), (0, 1, 0.4, 0.5), (1, 2, 0.3, 0.9), (0, 2, 0.6, 0.61)]
    seconds, texts = drawn(Run("a", 3, progress=[(2.0, 1, 1)], waits=waits, ends=[1.5, 1.0, 2.0]))
    grey, one, two = timeline._COMPUTING, timeline.color(1), timeline.color(2)
    expected = {(0, grey): 1.5, (1, grey): 1.0, (2, grey): 2.0, (0, two): 0.2866, (0, one): 0.1, (1, two): 0.6}
    assert seconds == pytest.approx(expected, rel=1e-9)
    assert texts == ["computing, exchanging", "waiting for worker 1", "waiting for worker 2"]


def test_a_window_shows_its_part():
    waits = [(0, 1, 0.0, 1.0), (1, 0, 1.5, 2.0)]
    seconds, texts = drawn(Run("a", 2, progress=[(2.0, 1, 1)], waits=waits), (0.75, 1.25))
    assert seconds[0, timeline.color(1)] == pytest.approx(0.25)
    assert texts == ["computing, exchanging", "waiting for worker 1"]


def test_more_workers_than_colours_share_a_grey():
    waits = [(0, other, float(other), other + 0.5 + other / 100) for other in range(1, 12)]
    seconds, texts = drawn(Run("a", 12, progress=[(12.0, 1, 1)], waits=waits))
    assert texts[-1] == "waiting for another" and len(texts) == len(timeline.COLORS) + 1
    assert seconds[0, timeline._OTHERS] == pytest.approx(sum(0.5 + other / 100 for other in range(1, 5)))
