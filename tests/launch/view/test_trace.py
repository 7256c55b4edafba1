"""`psgd trace`: each rank's time by kind, and what an aborted run left."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import DataError
from psgd.launch.view import trace
from psgd.metrics.trace import chrome
from psgd.metrics.trace.event_ring import KINDS, EventRing, parse


def ring(rank, spans, path=None):
    facts = {"rank": rank, "role": f"worker {rank}", "host": "h", "began": 100.0, "first": [100.0, 0.0, 0.0]}
    made = EventRing(path, facts, capacity=64)
    for kind, start, stop in spans:
        made.add(KINDS.index(kind), 100 + start, 100 + stop)
    return made


SPANS = [("compute", 1, 5), ("gradient", 2, 4), ("step", 5, 9), ("push", 5, 6), ("wait", 6, 8), ("pull", 8, 9)]


def said(*arguments):
    return CliRunner().invoke(trace.trace, [str(each) for each in arguments], catch_exceptions=False).output


def test_a_span_counts_without_those_inside_it(tmp_path):
    path = tmp_path / "run.json"
    chrome.write(path, [parse(each.content()) for each in (ring(0, SPANS), ring(1, SPANS[:1]))])
    first, second = trace.times(chrome.read(path))
    assert first.seconds == pytest.approx({"compute": 2, "gradient": 2, "push": 1, "wait": 2, "pull": 1})
    assert (first.start, first.stop, first.events) == pytest.approx((1, 9, 6))
    assert second.seconds == pytest.approx({"compute": 4})
    lines = said(path).splitlines()
    assert lines[0].split() == ["seconds", "events", "compute", "gradient", "push", "wait", "pull"]
    assert lines[1].split("  ")[0] == "rank 0: worker 0 on h"
    assert lines[1].split()[6:] == ["8.000", "6", *(word for n in (25, 25, 12, 25, 12) for word in (str(n), "%"))]


def test_what_an_aborted_run_left_is_merged_first(tmp_path):
    path = tmp_path / "run.json"
    for rank in (0, 1):
        ring(rank, SPANS, chrome.part_path(path, rank))
    assert "rank 1: worker 1 on h" in said(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", ["", "[]", '{"traceEvents": [1]}', '{"event": "start"}', "\x1f\x8b"])
def test_something_else_is_refused(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match="expected a Chrome trace"):
        said(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="or what an aborted run left beside it"):
        said(tmp_path / "none.json")


@pytest.mark.one_mpi
@pytest.mark.job
@pytest.mark.parametrize("end", ["raise:1@9", "kill:0@9", "kill:s0@9"])
def test_an_aborted_run_has_a_trace_of_all_ranks_up_to_its_end(job, tmp_path, end):
    folder = tmp_path / "made"
    folder.mkdir()
    path = folder / "run.json"
    options = f"--epochs 50 --model softmax --inject {end} --no-survive --trace {path}".split()
    result = job(None, [sys.executable, "-m", "psgd.launch", "train", *options])
    assert result.returncode != 0
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0, 1, 2}
    steps = {event["pid"]: event["args"]["step"] for event in events if event["name"] == "step" and "args" in event}
    assert 8 <= max(steps.values()) <= 9, steps
    assert list(folder.iterdir()) == [path], result.stderr
    assert f"psgd: the run was aborted: {path} has what 3 ranks had recorded until then\n" in result.stderr


@pytest.mark.one_mpi
def test_no_mpi_is_started_to_read_a_trace(tmp_path):
    path = tmp_path / "run.json"
    chrome.write(path, [parse(ring(0, SPANS).content())])
    program = "import sys; from psgd.launch.view import trace as t; t.trace([sys.argv[1]], standalone_mode=False); "
    program += "assert 'mpi4py.MPI' not in sys.modules"
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 0: worker 0 on h" in done.stdout
