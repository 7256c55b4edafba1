"""The background writer, two of them in one process; and what is left after SIGKILLs and on a full disk."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from harness import HARNESS
from harness.saving import sharded

import psgd
from psgd.checkpoint import folder, shards, vectors
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.state import State
from psgd.checkpoint.writer import Writer
from psgd.kernels.errors import CheckpointError

KILLS = int(os.environ.get("PSGD_KILLS", "15"))
NAMES = ["server-0", "worker-0"]


def pair(directory, **options):
    directory.mkdir(exist_ok=True)
    return Writer(directory, "k", NAMES[0], NAMES, **options), Writer(directory, "k", NAMES[1])


def test_what_is_saved_is_what_was_there_at_the_time(tmp_path):
    first, second = pair(tmp_path)
    params, clock = np.arange(100_000, dtype=np.float32), np.array([0])
    for step in range(1, 6):
        clock[0] = step
        facts = {"step": step, "list": [step]}
        second.save(step, State({"params": params, "clock": clock}, facts))
        first.save(step, State({"params": params[::2]}, facts), Manifest(step, step))
        facts["list"][0] = -1
        params += 1  # at once, while it is being written
    first.wait()
    second.wait()
    assert first.published == folder.ready_path(tmp_path, 5)
    for found in folder.complete(tmp_path, pytest.fail):
        step = found.manifest.step
        ours, theirs = found.state("server-0"), found.state("worker-0")
        assert ours.facts == theirs.facts == {"step": step, "list": [step]}
        assert theirs.tensors["clock"][0] == step
        assert np.array_equal(theirs.tensors["params"], np.arange(100_000) + step - 1)
        assert np.array_equal(ours.tensors["params"], theirs.tensors["params"][::2])
    assert len(folder.folders(tmp_path)) == 5


def test_one_writes_the_parts_of_others_too_and_all_of_these_fail_with_its_own(tmp_path):
    tmp_path.joinpath("a").mkdir()
    names = ["server-0", "server-1"]
    for disk, works in ((tmp_path / "a", True), (tmp_path / "gone", False)):
        writer = Writer(disk, "k", names[1])
        more = {"server-0": State({"params": np.zeros(3)}, {"shard": 0})}
        writer.save(1, State({"params": np.ones(2)}, {"shard": 1}), Manifest(1, 1), names, more)
        if works:
            writer.wait()
            found = folder.open_checkpoint(folder.ready_path(disk, 1))
            assert [found.state(name).facts["shard"] for name in names] == [0, 1]
            assert [found.state(name).tensors["params"].tolist() for name in names] == [[0, 0, 0], [1, 1]]
        else:
            with pytest.raises(CheckpointError, match="server-1 cannot be written"):
                writer.wait()


def test_memory_is_used_again(tmp_path):
    writer, state = Writer(tmp_path, "k", "worker-0", ["worker-0"]), State({"params": np.ones(1000)})
    writer.save(1, state, Manifest(1, 1))
    kept = writer._copies["worker-0"]["params"]
    writer.save(2, state, Manifest(2, 1))
    assert writer._copies["worker-0"]["params"] is kept and kept is not state.tensors["params"]
    writer.save(3, State({"params": np.ones((10, 10))}), Manifest(3, 1))
    writer.wait()
    assert next(folder.complete(tmp_path, pytest.fail)).state("worker-0").tensors["params"].shape == (10, 10)


def test_old_ones_go(tmp_path):
    first, second = pair(tmp_path, keep=2)
    for step, accuracy in enumerate([0.1, 0.8, 0.3, 0.4, 0.5], 1):
        second.save(step, State())
        first.save(step, State(), Manifest(step, step, accuracy=accuracy))
    first.wait()
    assert [path.name[-1] for path in folder.folders(tmp_path)] == ["5", "4", "2"]


def test_it_is_complete_only_when_all_have_written(tmp_path):
    first, second = pair(tmp_path)
    first.save(1, State(), Manifest(1, 1))
    time.sleep(0.1)
    assert first.busy and folder.folders(tmp_path) == []
    first.check()
    second.save(1, State())
    first.wait()
    assert not first.busy and first.published == folder.folders(tmp_path)[0]


def test_those_who_are_missing_are_named(tmp_path):
    first, _ = pair(tmp_path, patience_s=0.1)
    first.save(1, State(), Manifest(1, 1))
    with pytest.raises(CheckpointError, match=r"nothing from worker-0 for 0.1 s; can all ranks see"):
        first.wait()
    first.wait()  # told once
    assert first.published is None


def test_a_rank_that_cannot_write_ends_it_for_rank_0_too(tmp_path):
    first, second = pair(tmp_path)
    tmp_path.joinpath("step-000000001.k.part").mkdir()
    tmp_path.joinpath("step-000000001.k.part", "worker-0.safetensors").mkdir()
    second.save(1, State({"x": np.zeros(3)}))
    with pytest.raises(CheckpointError, match="worker-0 cannot be written: Is a directory"):
        second.wait()
    first.save(1, State(), Manifest(1, 1))
    with pytest.raises(CheckpointError, match="worker-0 could not write its part"):
        first.wait()


def test_one_who_died_before_its_part_was_written_costs_that_checkpoint_alone(tmp_path, capsys):
    dead = []
    first, second = pair(tmp_path, dead=lambda: dead)
    for step in (1, 2):
        first.save(step, State(), Manifest(step, step))
        if step == 1:
            dead.append("worker-0")
            first.wait()
            assert first.published is None and folder.folders(tmp_path) == []
            assert "worker-0 died before its part was written" in capsys.readouterr().err
            dead.clear()
    second.save(2, State())
    first.wait()
    assert first.published == folder.ready_path(tmp_path, 2)
    assert list(tmp_path.glob("step-*")) == [first.published]


@pytest.mark.parametrize("more", [True, False])
def test_who_comes_late_to_a_checkpoint_that_is_left_out_leaves_nothing(tmp_path, capsys, more):
    """`more`: the next is saved; else the run ends."""
    names, dead = [*NAMES, "worker-1"], ["worker-1"]
    first, second = Writer(tmp_path, "k", NAMES[0], names, dead=lambda: dead), Writer(tmp_path, "k", NAMES[1])
    folder.part_path(tmp_path, 1, "other").mkdir()
    first.save(1, State(), Manifest(1, 1))
    first.wait()
    assert "worker-1 died before its part was written" in capsys.readouterr().err
    second.save(1, State({"params": np.ones(9)}))
    second.wait()
    if more:
        first.save(2, State(), Manifest(2, 1), NAMES)
        second.save(2, State())
        first.wait()
    else:
        first.tidy()
    left = {"step-000000001.other.part"} | ({"step-000000002"} if more else set())
    assert {path.name for path in tmp_path.iterdir()} == left


def test_who_is_writing_when_a_checkpoint_is_left_out_is_not_disturbed(tmp_path, monkeypatch):
    goes, write = threading.Event(), shards.write

    def slowly(part, name, *content):
        if name == NAMES[1]:
            goes.wait(60)
        return write(part, name, *content)

    monkeypatch.setattr(shards, "write", slowly)
    names, dead = [*NAMES, "worker-1"], ["worker-1"]
    first, second = Writer(tmp_path, "k", NAMES[0], names, dead=lambda: dead), Writer(tmp_path, "k", NAMES[1])
    second.save(1, State({"params": np.ones(9)}))
    first.save(1, State(), Manifest(1, 1))
    first.wait()
    goes.set()
    second.wait()
    first.tidy()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("died", [True, False])
def test_a_part_that_is_removed_while_it_is_written_matters_only_where_nobody_died(tmp_path, monkeypatch, died):
    write = shards.write

    def after_removal(part, name, *content):
        folder.remove_parts(tmp_path, "k")
        return write(part, name, *content)

    monkeypatch.setattr(shards, "write", after_removal)
    writer = Writer(tmp_path, "k", NAMES[1], dead=lambda: ["worker-1"] if died else [])
    writer.save(1, State({"params": np.ones(9)}))
    with contextlib.nullcontext() if died else pytest.raises(CheckpointError, match="cannot be written"):
        writer.wait()
    assert list(tmp_path.iterdir()) == []


def test_nan_removes_what_was_left_out_before_too(tmp_path):
    dead = ["worker-0"]
    first, second = pair(tmp_path, dead=lambda: dead)
    first.save(1, State(), Manifest(1, 1))
    first.wait()
    first.save(2, State({"params": np.array([np.nan])}), Manifest(2, 1))
    second.save(2, State())
    dead.clear()
    second.wait()
    first.wait()
    assert first.published is None and list(tmp_path.iterdir()) == []


def test_what_begins_to_write_after_it_was_abandoned_makes_no_folder(tmp_path, monkeypatch):
    _, second = pair(tmp_path)
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (second.abandon(), start(thread)))
    second.save(1, State())
    second.wait()
    assert list(tmp_path.iterdir()) == []


def test_an_abandoned_one_waits_for_nobody(tmp_path):
    first, _ = pair(tmp_path)
    first.save(1, State(), Manifest(1, 1))
    first.abandon()
    with pytest.raises(CheckpointError, match="the run has failed"):
        first.wait()


def test_facts_that_are_no_json(tmp_path):
    with pytest.raises(CheckpointError, match="a fact is not JSON"):
        Writer(tmp_path, "k", "worker-0").save(1, State(facts={"x": np.float32(1)}))
    with pytest.raises(CheckpointError, match="tensor x: expected one of"):
        Writer(tmp_path, "k", "worker-0").save(1, State({"x": np.zeros(3, np.complex64)}))
    assert list(tmp_path.iterdir()) == []


def test_the_thread_runs_beside_python_code(tmp_path):
    """Hashing and writing hold no lock: a loop in Python goes on meanwhile."""
    writer = Writer(tmp_path, "k", "worker-0", ["worker-0"])
    writer.save(1, State({"params": np.ones(2 << 20)}), Manifest(1, 1))
    turns = 0
    while writer.busy:
        turns += 1
    writer.wait()
    assert turns > 100
    assert threading.active_count() < 10


def fill_up(directory):
    """Saves until the disk is full; what was complete before stays, and room brings the next one."""
    first, second = pair(directory)
    vector, full = np.arange(60_000, dtype=np.float64), None
    for step in range(1, 50):
        try:
            for index, writer in enumerate((second, first)):
                part = range(0, 30_000) if writer is first else range(30_000, 60_000)
                tensors = {"params": vector[part.start : part.stop] + step}
                writer.save(step, sharded(part, 60_000, tensors), Manifest(step, 1) if index else None)
            second.wait()
            first.wait()
        except CheckpointError as error:
            full = error
            break
    assert full is not None
    last = next(folder.complete(directory, print))
    assert last.manifest.step == step - 1
    states = [last.state(name) for name in last.manifest.names()]
    assert np.array_equal(vectors.weights(states), vector + step - 1)
    return first, second, str(full)


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=3m", "psgd-test", str(disk)]
    if subprocess.run(small, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a small disk")
    try:
        first, second, said = fill_up(disk)
        assert "No space left on device" in said or "could not write its part" in said
        folder.claim(disk).close()  # what a new run would do
        folder.prune(disk, 1)
        for writer, manifest in ((second, None), (first, Manifest(60, 1))):
            writer.abandon()
            fresh = Writer(disk, "k2", writer._name, writer._everyone)
            fresh.save(60, State({"params": np.ones(9)}), manifest)
        fresh.wait()
        assert next(folder.complete(disk, print)).manifest.step == 60
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


LIMITED = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import test_writer as here
limit = 100_000
directory = Path(sys.argv[1])
first, second = here.pair(directory)
for step in (1, 2):
    second.save(step, here.State())
    first.save(step, here.State({"params": here.np.ones(9)}), here.Manifest(step, 1))
first.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
second.save(3, here.State())
first.save(3, here.State({"params": here.np.ones(limit)}), here.Manifest(3, 1))
try:
    first.wait()
except here.CheckpointError as error:
    print(error)
second.wait()
print(next(here.folder.complete(directory, print)).manifest.step)
"""


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(psgd.__file__).resolve().parent.parent), "OPENBLAS_NUM_THREADS": "1"}


def test_a_file_that_may_not_grow(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "runs"), str(Path(__file__).parent), str(HARNESS.parent)],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert "server-0 cannot be written: File too large" in lines[0] and lines[1] == "2"
    assert not list((tmp_path / "runs").glob("*.part/.*"))  # nothing of it takes up room


def test_the_newest_is_whole_whenever_writers_are_killed(tmp_path):
    """PSGD_KILLS says how often (15)."""
    script = HARNESS / "saving.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(KILLS), "1"],
        env=environment(), capture_output=True, text=True, timeout=60 + KILLS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{KILLS} kills" in done.stdout and "none damaged" in done.stdout
