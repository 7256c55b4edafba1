import time

import pytest

from psgd.metrics.trace.event_ring import KINDS, EventRing, parse
from psgd.metrics.trace.span import Span, attach


class Thing:
    def double(self, number, *, more=0):
        if number < 0:
            raise ValueError("negative")
        time.sleep(0.001 * number)
        return 2 * number + more


def test_a_method_of_one_object_is_timed_also_where_it_raises():
    ring, thing, other = EventRing(None, {}, 16), Thing(), Thing()
    attach(ring, [Span(thing, "double", "apply", track=1)])
    before = time.perf_counter()
    assert thing.double(3, more=1) == 7
    with pytest.raises(ValueError, match="negative"):
        thing.double(-1)
    assert other.double(1) == 2
    after = time.perf_counter()
    _, events = parse(ring.content())
    assert [KINDS[kind] for kind in events["kind"]] == ["apply", "apply"]
    assert events["track"].tolist() == [1, 1]
    assert before <= events["start"][0] and events["stop"][1] <= after
    assert events["stop"][0] - events["start"][0] >= 0.003


def test_a_method_that_is_timed_already_is_timed_once():
    ring, thing = EventRing(None, {}, 16), Thing()
    for _ in range(2):
        attach(ring, [Span(thing, "double", "apply")])
    thing.double(0)
    assert len(parse(ring.content())[1]) == 1
