"""A rank's newest events: what is kept, what it costs, and what survives."""

import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest

from psgd.kernels.errors import DataError
from psgd.metrics.trace import event_ring
from psgd.metrics.trace.event_ring import CAPACITY, HEADER_BYTES, KINDS, EventRing, parse


def test_the_newest_events_are_kept_in_the_order_of_their_starts(tmp_path):
    ring = EventRing(tmp_path / "ring", {"rank": 3}, capacity=8)
    ring.tell(host="a")
    for n in range(1, 12):
        ring.add(n % 3, float(n), n + 0.5, number=n)
    for content in (ring.content(), (tmp_path / "ring").read_bytes()):
        facts, events = parse(content)
        assert (facts["rank"], facts["host"], facts["capacity"]) == (3, "a", 8)
        assert events["number"].tolist() == list(range(4, 12))
        assert events["start"].tolist() == [float(n) for n in range(4, 12)]
        assert events["kind"].tolist() == [n % 3 for n in range(4, 12)]
    ring.remove()
    ring.add(0, 12.0, 13.0)  # what is still timed does no harm
    assert list(tmp_path.iterdir()) == [] and ring.path is None


@pytest.mark.alone
def test_an_event_allocates_nothing_and_takes_below_a_microsecond():
    ring = EventRing(None, {})
    add, clock = ring.add, time.perf_counter

    def fill(n):
        for number in range(n):
            add(1, 1.0, 2.0, 0, number & 127)

    fill(1000)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    fill(2000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200  # the counter's own number, not 24 bytes an event
    best = min(_seconds(fill, 2000, clock) for _ in range(20))
    assert best / 2000 < 1e-6, best / 2000


def _seconds(fill, n, clock):
    start = clock()
    fill(n)
    return clock() - start


def test_threads_write_to_different_places():
    ring = EventRing(None, {}, capacity=1 << 13)
    threads = [
        threading.Thread(target=lambda n=n: [ring.add(0, 1.0 + i, 2.0 + i, n) for i in range(2000)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, events = parse(ring.content())
    assert len(events) == 8000
    assert np.bincount(events["track"]).tolist() == [2000] * 4


def test_what_a_killed_process_recorded_is_there(tmp_path):
    program = (
        "import os, sys, pathlib\n"
        "from psgd.metrics.trace.event_ring import EventRing\n"
        "ring = EventRing(pathlib.Path(sys.argv[1]), {'rank': 0}, 64)\n"
        "ring.add(2, 1.0, 2.0)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "ring"
    done = subprocess.run([sys.executable, "-c", program, str(path)], timeout=60, check=False)
    assert done.returncode == -9
    _, events = parse(path.read_bytes())
    assert [(float(e["start"]), float(e["stop"]), KINDS[e["kind"]]) for e in events] == [(1.0, 2.0, "push")]


def test_where_no_file_can_be_made_it_is_memory(tmp_path):
    ring = EventRing(tmp_path / "none" / "ring", {}, 8)
    assert ring.path is None
    ring.add(0, 1.0, 2.0)
    assert len(parse(ring.content())[1]) == 1


def test_a_link_that_somebody_prepared_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "ring").symlink_to(tmp_path / "victim")
    EventRing(tmp_path / "ring", {}, 8)
    assert (tmp_path / "victim").read_text() == "kept"


def test_a_full_disk_is_noticed_at_once_and_is_memory(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(event_ring.os, "posix_fallocate", full)
    ring = EventRing(tmp_path / "ring", {}, 8)
    assert ring.path is None and list(tmp_path.iterdir()) == []


def test_torn_and_impossible_events_are_left_out():
    ring = EventRing(None, {}, 8)
    ring.add(0, 1.0, 2.0)
    ring.add(0, 3.0, 2.5)  # its end not written yet
    ring.add(len(KINDS), 4.0, 5.0)
    ring.add(0, 6.0, float("inf"))
    assert parse(ring.content())[1]["start"].tolist() == [1.0]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": "other"}', b"\xff" * HEADER_BYTES])
def test_what_is_no_ring_is_refused(content):
    with pytest.raises(DataError, match="here: expected what a rank"):
        parse(content.ljust(HEADER_BYTES, b"\0"), "here")


def test_one_that_is_cut_off_is_refused():
    with pytest.raises(DataError):
        parse(EventRing(None, {}, 8).content()[:-1])


def test_the_memory_is_bounded():
    assert len(EventRing(None, {}).content()) == HEADER_BYTES + 24 * CAPACITY
