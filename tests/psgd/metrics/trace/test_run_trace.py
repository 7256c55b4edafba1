"""Whole runs with a trace, on real ranks: a file of all ranks whose spans nest, and whose ranks are aligned."""

import contextlib
import io
import json
import time
from collections import defaultdict
from unittest.mock import patch

import numpy as np
import pytest

import psgd
from psgd.metrics.trace import chrome, clock_offsets, run_trace
from psgd.metrics.trace.event_ring import KINDS, EventRing
from psgd.runtime import new_files

STEPS = 12


def read(path):
    """Spans by rank and track: (start, stop, name, step) in whole nanoseconds, outer ones first."""
    found = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            start = round(1000 * event["ts"])
            step = event.get("args", {}).get("step", 0)
            found[event["pid"], event["tid"]].append((start, start + round(1000 * event["dur"]), event["name"], step))
    return {key: sorted(spans, key=lambda span: (span[0], -span[1])) for key, spans in found.items()}


def check_nesting(found):
    for key, spans in found.items():
        outer = []
        for start, stop, name, _ in spans:
            while outer and outer[-1][1] <= start:
                outer.pop()
            assert not outer or stop <= outer[-1][1], (key, name, start, stop, outer[-1])
            outer.append((start, stop))


def run(comm, path, strategy, servers=None, steps=STEPS, size=64, **options):
    params = np.zeros(size, np.float32)
    with psgd.connect(comm, params, strategy=strategy, servers=servers, trace=path, **options) as ps:
        for _ in range(steps):
            ps.grads[:] = ps.params + 1
            ps.step(4, 0.5)
    comm.Barrier()


NAMES = {
    "sync": {"compute", "step", "push", "wait", "pull", "finish"},
    "async": {"compute", "step", "push", "wait", "pull", "finish"},
    "allreduce": {"compute", "step", "all-reduce", "wait", "apply", "finish"},
    "averaging": {"compute", "step", "all-reduce", "wait", "apply", "finish"},
    "easgd": {"compute", "step", "push", "pull", "apply", "finish"},
    "hogwild": {"compute", "step", "apply", "finish"},
    "decentralized": {"compute", "step", "push", "wait", "apply", "finish"},
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", NAMES)
def test_all_ranks_are_in_one_file_and_their_spans_nest(comm, tmp_path, strategy):
    path = tmp_path / "run.json"
    run(comm, path, strategy)
    if comm.rank == 0:
        found = read(path)
        check_nesting(found)
        assert {rank for rank, _ in found} == {0, 1, 2}
        servers = 1 if strategy in ("sync", "async") else 0
        for rank in range(servers, 3):
            spans = found[rank, 0]
            assert {name for _, _, name, _ in spans} == NAMES[strategy], rank
            steps = [(start, step) for start, _, name, step in spans if name == "step"]
            assert [step for _, step in steps] == list(range(1, STEPS + 1))
            assert len([span for span in spans if span[2] == "compute"]) == STEPS
        if servers:
            assert {name for _, _, name, _ in found[0, 0]} == {"wait", "apply"}
        assert list(tmp_path.iterdir()) == [path]
    comm.Barrier()


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_what_ranks_do_together_is_at_the_same_time_on_all(comm, tmp_path, strategy):
    """Whatever ends a step needs all workers: it ends nowhere before it has begun everywhere."""
    path = tmp_path / "run.json"
    run(comm, path, strategy)
    if comm.rank == 0:
        found = read(path)
        workers = range(1 if strategy == "sync" else 0, comm.size)
        for step in range(1, STEPS + 1):
            spans = [next(span for span in found[rank, 0] if span[3] == step) for rank in workers]
            assert max(start for start, *_ in spans) <= min(stop for _, stop, *_ in spans)
        if strategy == "sync":  # the server's work lies between the last push and the first worker's end of the step
            applied = [span for span in found[0, 0] if span[2] == "apply"]
            assert len(applied) == STEPS
            for step, (start, *_) in enumerate(applied, 1):
                mine = [next(span for span in found[rank, 0] if span[3] == step) for rank in workers]
                assert max(span[0] for span in mine) <= start <= min(span[1] for span in mine)
    comm.Barrier()


@pytest.mark.ranks(3)
def test_hosts_whose_clocks_differ_are_aligned(comm, tmp_path):
    """Each rank's clock is set ahead by hours; the trace must not show it."""
    clock, ahead = time.perf_counter, 3600.0 * (1 + comm.rank)
    path = tmp_path / "run.json"

    def measure(comm, wait):
        return clock_offsets.measure(comm, wait, lambda: clock() + ahead, name=f"host {comm.rank}")

    with patch.object(time, "perf_counter", lambda: clock() + ahead), patch.object(run_trace, "measure", measure):
        run(comm, path, "allreduce")
    if comm.rank == 0:
        found = read(path)
        for step in range(1, STEPS + 1):
            spans = [next(span for span in found[rank, 0] if span[3] == step) for rank in range(3)]
            assert max(start for start, *_ in spans) <= min(stop for _, stop, *_ in spans) + 2e6  # ns
    comm.Barrier()


@pytest.mark.ranks(1)
def test_a_single_rank(comm, tmp_path):
    path = tmp_path / "run.json"
    chrome.part_path(path, 5).touch()  # of an earlier run
    run(comm, path, "sync")
    found = read(path)
    check_nesting(found)
    assert {name for _, _, name, _ in found[0, 0]} == {"compute", "step", "apply", "finish"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.ranks(3)
def test_checkpoints_are_seen_as_saved_and_written(comm, tmp_path):
    path = tmp_path / "run.json"
    run(comm, path, "sync", checkpoint_dir=tmp_path / "runs", checkpoint_every=5)
    if comm.rank == 0:
        found = read(path)
        check_nesting(found)
        for rank in range(3):
            assert [name for _, _, name, _ in found[rank, 0]].count("save") == 2
            written = [name for _, _, name, _ in found[rank, 1]]
            assert written in (["write"], ["write", "write"])  # the last may be under way still
    comm.Barrier()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_a_run_that_fails_leaves_what_was_recorded(comm, tmp_path, strategy):
    path = tmp_path / "run.json"

    def train():
        with psgd.connect(comm, np.zeros(8), strategy=strategy, trace=path) as ps:
            for step in range(5):
                if step == 3 and ps.worker == ps.workers - 1:
                    raise ZeroDivisionError
                ps.step()

    with pytest.raises((ZeroDivisionError, psgd.PeerLostError)):  # the last worker's own, or of it
        train()
    comm.Barrier()
    if comm.rank == 0:
        assert not path.exists() and len(chrome.parts(path)) == 3
        assert chrome.merge_parts(path) == 3
        found = read(path)
        check_nesting(found)
        assert {rank for rank, _ in found} == {0, 1, 2}
        assert max(step for *_, step in found[2, 0]) == 3
        assert list(tmp_path.iterdir()) == [path]
    comm.Barrier()


@pytest.mark.ranks(3)
def test_a_file_that_cannot_be_written_costs_the_trace_not_the_run(comm, tmp_path):
    full, path, said = OSError(28, "No space left on device"), tmp_path / "run.json", io.StringIO()
    with patch.object(chrome, "replacing", side_effect=full), contextlib.redirect_stderr(said):
        run(comm, path, "sync")
    if comm.rank == 0:
        assert f"trace {path}" in new_files.lost()
        assert said.getvalue() == f"psgd: warning: trace {path}: No space left on device; it ends here\n"
        assert list(tmp_path.iterdir()) == []
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_trace_that_cannot_be_is_one_error_on_all_ranks(comm, tmp_path):
    for path, error in ((tmp_path / "none" / "a.json", psgd.UsageError), (tmp_path, psgd.UsageError)):
        with pytest.raises(error, match="trace "):
            psgd.connect(comm, np.zeros(4), trace=path)
    with pytest.raises(psgd.ContractError, match="trace"):
        psgd.connect(comm, np.zeros(4), trace=tmp_path / "a.json" if comm.rank else None)


@pytest.mark.ranks(3)
def test_those_that_live_merge_what_the_dead_have_left(comm, tmp_path):
    """Rank 0 is as dead, and rank 2 leads. All clocks are hours apart, and the trace must not show it."""
    clock, ahead, path = time.perf_counter, 3600.0 * (1 + comm.rank), tmp_path / "run.json"

    def wait(request):
        request.Wait()

    def measure(comm, wait):
        return clock_offsets.measure(comm, wait, lambda: clock() + ahead, name=f"host {ahead}")

    living = comm.Split(min(comm.rank, 1), -comm.rank)
    with patch.object(time, "perf_counter", lambda: clock() + ahead), patch.object(run_trace, "measure", measure):
        trace = run_trace.RunTrace(path, comm.rank, run_trace.Among(comm, "worker", comm.rank), wait)
        comm.Barrier()
        now = time.perf_counter()
        trace.ring.add(KINDS.index("step"), now, now + 1e-3, 0, 1)
        if comm.rank == 2:
            EventRing(chrome.part_path(path, 7), {"rank": 7, "began": 1.0})  # of another run
            trace.ring.add(KINDS.index("lost"), now, now, 0, 0)
        comm.Barrier()
        if comm.rank:
            trace.finish(wait, living)
            trace.finish(wait, living)  # again, as where one dies in the first
            trace.close()
    comm.Barrier()
    if comm.rank == 0:
        found = read(path)
        assert sorted(found) == [(0, 0), (1, 0), (2, 0)]
        starts = [spans[0][0] for spans in found.values()]
        assert max(starts) - min(starts) < 600e9  # ns, of hours
        (lost,) = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "i"]
        assert lost["name"] == "lost" and lost["pid"] == 2 and lost["args"] == {"rank": 0}
        assert round(1000 * lost["ts"]) == found[2, 0][0][0]
        assert [len(spans) for _, spans in chrome.read(path)] == [1, 1, 1]
        assert list(tmp_path.iterdir()) == [path]
    comm.Barrier()
    living.Free()
