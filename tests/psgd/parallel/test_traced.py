"""Passes that an executor tells of are events of the trace."""

from psgd.metrics.trace import chrome
from psgd.metrics.trace.event_ring import EventRing, parse
from psgd.metrics.trace.passes import Pass
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.traced import PassSpans


class Executor:
    observer = None


def test_each_pass_is_an_event(tmp_path):
    facts = {"rank": 0, "role": "worker 0", "host": "h", "began": 1.0, "first": [1.0, 0.0, 0.0]}
    ring, executor = EventRing(None, facts, capacity=16), Executor()
    PassSpans(executor).attach(ring)
    executor.observer(Instruction("F", 2, 1), 1.5, 2.0)
    executor.observer(Instruction("W", 0), 2.0, 2.25)
    chrome.write(tmp_path / "t.json", [parse(ring.content())])
    assert chrome.read_passes(tmp_path / "t.json")[0][1] == [Pass(0.5, 1.0, "F", 2, 1), Pass(1.0, 1.25, "W", 0, 0)]
