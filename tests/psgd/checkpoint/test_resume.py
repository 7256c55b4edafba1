"""Which checkpoint a run goes on from, agreed by all ranks: `test_saver.py` resumes whole runs."""

import numpy as np
import pytest

from psgd.checkpoint import resume
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.resume import Plan
from psgd.checkpoint.state import State
from psgd.checkpoint.writer import Writer
from psgd.kernels.errors import UsageError


def write(directory, *steps, run=None):
    """Complete checkpoints of one rank."""
    directory.mkdir(exist_ok=True)
    writer = Writer(directory, "k", "worker-0", ["worker-0"], keep=9)
    for step in steps:
        manifest = Manifest(step, 10 * step, run=run or {})
        writer.save(step, State({"params": np.full(3, float(step))}), manifest)
        writer.wait()


def prepared(comm, directory, **options):
    wanted = Plan(directory, **options)
    wanted.check()
    try:
        resume.prepare(comm, wanted)
    finally:
        wanted.release()
    return wanted


@pytest.mark.ranks(1, 3)
def test_all_ranks_go_on_from_the_newest(comm, tmp_path):
    if comm.rank == 0:
        write(tmp_path / "run", 3, 7)
    comm.Barrier()
    found = prepared(comm, tmp_path / "run", resume=True)
    assert found.found.manifest.step == 7 and found.found.path.name == "step-000000007"
    assert len(set(comm.allgather(found.key))) == 1 and found.key
    states = resume.States(found.found)
    assert len(states) == 1 and states.names == ["worker-0"]
    assert states[0].tensors["params"].tolist() == [7.0] * 3
    assert not list((tmp_path / "run").glob(f".{found.key}"))


@pytest.mark.ranks(3)
def test_a_damaged_one_is_put_aside_for_the_one_before(comm, tmp_path):
    if comm.rank == 0:
        write(tmp_path / "run", 3, 7)
        (tmp_path / "run/step-000000007/worker-0.safetensors").write_bytes(b"spoilt")
    comm.Barrier()
    assert prepared(comm, tmp_path / "run", resume=True).found.manifest.step == 3
    assert (tmp_path / "run/step-000000007.damaged1").is_dir()


@pytest.mark.ranks(3)
def test_without_any_it_starts_anew(comm, tmp_path):
    assert prepared(comm, tmp_path / "run", resume=True).found is None
    assert prepared(comm, None).found is None


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("options", "was", "message"),
    [
        ({}, {}, "has step-000000003 from a run with the same options: continue that run with --resume"),
        ({"run": {"rule": "adam"}}, {"rule": "sgd"}, "has step-000000003 from another run: resume that run"),
        (
            {"resume": True, "run": {"rule": "adam"}},
            {"rule": "sgd"},
            "is from a run with rule 'sgd', but this run has 'adam'",
        ),
    ],
)
def test_another_run_is_refused_on_all_ranks(comm, tmp_path, options, was, message):
    if comm.rank == 0:
        write(tmp_path / "run", 3, run=was)
    comm.Barrier()
    with pytest.raises(UsageError, match=message):
        prepared(comm, tmp_path / "run", **options)


@pytest.mark.ranks(2)
def test_other_numbers_of_workers_and_servers_are_no_other_run(comm, tmp_path):
    if comm.rank == 0:
        write(tmp_path / "run", 3, run={"workers": 4, "servers": 2, "rule": "sgd"})
    comm.Barrier()
    run = {"workers": 1, "servers": 0, "rule": "sgd"}
    assert prepared(comm, tmp_path / "run", resume=True, run=run).found is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": -1}, "checkpoint_every: expected a whole number, at least 0, got -1"),
        ({"every": 1.5}, "checkpoint_every: expected a whole number"),
        ({"minutes": -0.5}, "checkpoint_minutes: expected"),
        ({"keep": 0}, "checkpoint_keep: expected a whole number, at least 1, got 0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        Plan(**options).check()


def test_a_program_may_not_take_psgds_names():
    wanted = Plan()
    wanted.must_agree({"rule": "sgd"}, {"data": "x"})
    assert wanted.run == {"rule": "sgd", "data": "x"}
    with pytest.raises(UsageError, match="expected names that psgd does not use itself, got rule"):
        wanted.must_agree({"rule": "sgd"}, {"rule": "x"})


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"x": (1, 2)}, r"run\['x'\]: tuple would not be restored unchanged; use a list"),
        ({"x": {1: 2}}, r"run\['x'\]: key 1 would be restored as a string"),
        ({1: 2}, "run: key 1 would be restored"),
        ({"x": float("nan")}, "equal to themselves, got NaN"),
        ({"x": np.float32(1)}, r"run\['x'\]: float32 would not"),
    ],
)
def test_what_no_run_could_have_in_common_with_its_own_checkpoint_is_refused(run, message):
    with pytest.raises(UsageError, match=message):
        Plan().must_agree({}, run)


@pytest.mark.ranks(1)
def test_a_run_that_is_too_long_to_be_read_is_refused_at_the_start(comm, tmp_path):
    with pytest.raises(UsageError, match=r"manifest.json: expected at most 67,108,864 bytes, got"):
        prepared(comm, tmp_path / "run", run={"x": "y" * (64 << 20)})
    assert not (tmp_path / "run").exists()
