"""The file, read back as JSON: names, microseconds of rank 0's clock, and spans that touch but do not overlap."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from psgd.kernels.errors import DataError, UsageError
from psgd.metrics.trace import chrome
from psgd.metrics.trace.event_ring import EventRing, parse


def ring(rank, path=None, **facts):
    known = {"rank": rank, "role": f"worker {rank}", "host": "h", "began": 100.0, "first": [100.0, 0.0, 0.0]}
    return EventRing(path, known | facts, capacity=64)


def spans(path):
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_the_file_is_json_with_a_process_for_each_rank(tmp_path, name):
    first, second = ring(0), ring(1, first=[100.0, 7.0, 0.0])
    first.add(0, 100.5, 101.0)
    first.add(1, 101.0, 101.25, number=12)
    second.add(3, 108.0, 108.5, track=1)
    path = tmp_path / name
    assert chrome.write(path, [parse(each.content()) for each in (first, second)]) == 3
    assert [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in spans(path)] == [
        ("compute", 0, 0, 500_000.0, 500_000.0),
        ("step", 0, 0, 1_000_000.0, 250_000.0),
        ("wait", 1, 1, 1_000_000.0, 500_000.0),
    ]
    assert spans(path)[1]["args"] == {"step": 12}
    content = path.read_bytes()
    whole = json.loads(gzip.decompress(content) if name.endswith("gz") else content)
    named = {
        (e["pid"], e.get("tid")): e["args"] for e in whole["traceEvents"] if e["ph"] == "M" and "name" in e["args"]
    }
    assert named[0, None]["name"] == "rank 0: worker 0 on h"
    assert named[1, 1]["name"] == "checkpoint writer"
    assert list(tmp_path.iterdir()) == [path]


def test_spans_that_touch_do_not_overlap_whatever_their_clock(tmp_path):
    """A reader that rounds as it likes would make a child longer than its parent: nanoseconds are whole here."""
    one = ring(0, first=[100.0, 0.1234567891, 0.0], last=[200.0, 0.1234599999, 0.0])
    edges = 100.2 + np.cumsum(np.random.default_rng(0).uniform(1e-9, 1e-4, 50))
    for start, stop in itertools.pairwise(edges):
        one.add(0, start, stop)
    path = tmp_path / "run.json"
    chrome.write(path, [parse(one.content())])
    found = [(round(1000 * e["ts"]), round(1000 * (e["ts"] + e["dur"]))) for e in spans(path)]
    assert len(found) == 49
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))


def test_what_an_aborted_run_left_is_merged_once(tmp_path):
    path = tmp_path / "run[1].json"
    for rank in (0, 2):
        left = ring(rank, chrome.part_path(path, rank))
        left.add(2, 100.5, 100.75)
    EventRing(chrome.part_path(path, 3), {"rank": 3}, 8)  # it had not begun
    assert chrome.merge_parts(path) == 3
    assert [(e["pid"], e["ts"]) for e in spans(path)] == [(0, 5e5), (2, 5e5)]
    assert list(tmp_path.iterdir()) == [path]
    assert chrome.merge_parts(path) == 0


def test_something_else_under_their_names_is_refused_and_stays(tmp_path):
    part = chrome.part_path(tmp_path / "run.json", 0)
    part.write_text("mine")
    with pytest.raises(DataError, match=r"rank-0000.part: expected what a rank"):
        chrome.merge_parts(tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == [part]


def test_a_device_is_not_replaced_by_a_trace(tmp_path):
    for path, expected in (("/dev/null", "a plain file"), (tmp_path, "it is a folder"), (tmp_path / "a/b", "existing")):
        with pytest.raises(UsageError, match=rf"^--trace .*{expected}"):
            chrome.check("--trace", Path(path))
    chrome.check("--trace", tmp_path / "new.json")
    (tmp_path / "old.json").touch()
    chrome.check("--trace", tmp_path / "old.json")
