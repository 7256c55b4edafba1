"""A traced run that goes on without its dead: the traces of those that live are whole, and the dead's end early."""

import json

import pytest
from harness import mpi

from psgd.metrics.trace import chrome

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]


@pytest.mark.parametrize(
    ("words", "dead", "steps_of", "calls", "teller"),
    [
        ("--strategy allreduce --workers 3 --inject kill:0@9,compute:0.002", [0], {0: 8}, "wait", 1),
        ("--servers 2 --replicas 1 --workers 2 --inject kill:s0@9,kill:1@20,compute:0.002", [0, 3], {3: 19}, "push", 1),
    ],
)
def test_all_ranks_are_in_it(words, dead, steps_of, calls, teller, psgd_command, tmp_path):
    path = tmp_path / "run.json"
    done = psgd_command("train", *words.split(), "--hidden", "16", "--epochs", "2", "--trace", str(path), timeout=180)
    assert done.returncode == 4, done.stderr
    assert list(tmp_path.glob("run.json*")) == [path], "what ranks have recorded is left beside it"
    events = json.loads(path.read_text())["traceEvents"]
    lost = [event for event in events if event["name"] == "lost"]
    assert [event["args"]["rank"] for event in lost] == dead and {event["pid"] for event in lost} == {teller}
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == set(range(3 + len(dead) - 1))
    for rank in {event["pid"] for event in spans if event["name"] == "step"}:
        mine = [event for event in spans if event["pid"] == rank]
        steps = [event["args"]["step"] for event in mine if event["name"] == "step"]
        if rank in dead:
            assert steps == list(range(1, steps_of[rank] + 1))
            assert max(event["ts"] for event in mine) < lost[-1]["ts"]
            continue
        assert steps == list(range(1, len(steps) + 1)) and len(steps) > max(steps_of.values())
        after = [event["name"] for event in mine if event["ts"] > lost[-1]["ts"]]
        assert after.count(calls) >= after.count("step") > 0, "what was made anew is not timed"
    assert len(chrome.read(path)) == 3 + len(dead) - 1
