"""The long job on two nodes, cut by its time limit. The last file: the limit comes while other tests run."""

import numpy as np
import pytest


def test_cut_three_times_it_ends_as_one_that_was_not_cut(login, cut_job):
    if cut_job is None:
        pytest.skip("runs with Open MPI; PSGD_CLUSTER=whole runs it with both")
    number, login.folder = cut_job.number, cut_job.folder
    config = cut_job.folder / "run.toml"
    quick = config.read_text().replace(cut_job.slow, "")
    whole = login.folder / "whole.toml"
    whole.write_text(quick)
    srun = ["srun", f"--mpi={login.mpi}", "--ntasks=3", "--time=2", str(login.venv / "bin" / "psgd")]
    login.cluster.run(*srun, "train", "--config", str(whole), "--checkpoint-dir", "whole", cwd=login.folder)
    for count in (1, 2, 3):
        if count > cut_job.by_time:  # Slurm looks at the time every 30 s; this is what it does then
            login.cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=10")
            login.cluster.run("scancel", "--batch", "--signal=USR2", number)
        if count == 3:
            config.write_text(quick)
        login.next_turn(number, count)
    login.cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=10")
    said = login.done(number)
    assert said.count("requeued to resume from") == 3
    assert "accuracy" in said
    samples = [event["samples"] for event in login.events(number) if event["event"] == "progress"]
    assert samples == sorted(samples)
    weights = []
    for name in ("whole", f"checkpoints-{number}"):
        assert (login.folder / name / f"step-{cut_job.steps:09d}").is_dir()
        login.psgd("checkpoint", "export", name, "-o", f"{name}.npz")
        weights.append(np.load(login.folder / f"{name}.npz"))
    one, other = weights
    assert one.files == other.files
    for name in one.files:
        assert one[name].tobytes() == other[name].tobytes()
