"""Passes of a pipeline go through the ring and the file with their microbatch and chunk."""

import json

import pytest

from psgd.metrics.trace import chrome, passes
from psgd.metrics.trace.event_ring import KINDS, EventRing, parse


def test_kinds_of_passes_can_be_recorded():
    assert set(passes.PASSES) < set(KINDS)


@pytest.mark.parametrize(("microbatch", "chunk"), [(0, 0), (7, 3), (1_000_000, 63)])
def test_both_are_in_one_number(microbatch, chunk):
    text = passes.arguments("F", passes.number(microbatch, chunk))
    assert json.loads("{" + text.removeprefix(", ")) == {"args": {"microbatch": microbatch, "chunk": chunk}}


def test_other_events_keep_their_step():
    assert passes.arguments("push", 5) == ', "args": {"step": 5}}'
    assert passes.decode("push", 0, 1, {"step": 5}) is None
    assert passes.decode("F", 0, 1, {}) is None


def test_a_file_has_the_passes_of_each_rank(tmp_path):
    rings = []
    for rank in range(2):
        facts = {"rank": rank, "role": f"worker {rank}", "host": "h", "began": 100.0, "first": [100.0, 0.0, 0.0]}
        rings.append(EventRing(None, facts, capacity=16))
    rings[0].add(KINDS.index("compute"), 101, 110)
    rings[0].add(KINDS.index("F"), 102, 103, number=passes.number(0, 0))
    rings[0].add(KINDS.index("X"), 104, 106.5, number=passes.number(3, 1))
    chrome.write(tmp_path / "t.json", [parse(ring.content()) for ring in rings])
    first, last = chrome.read_passes(tmp_path / "t.json")
    assert first == ("rank 0: worker 0 on h", [passes.Pass(2.0, 3.0, "F", 0, 0), passes.Pass(4.0, 6.5, "X", 3, 1)])
    assert last == ("rank 1: worker 1 on h", [])
    assert [kind for _, _, kind in chrome.read(tmp_path / "t.json")[0][1]] == ["compute", "F", "X"]
