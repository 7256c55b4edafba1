"""`psgd train` whose ranks are killed, any of them: others take their places, and it ends with the bits of no death."""

import json
import re

import numpy as np
import pytest
from harness import mpi

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]
SAMPLES = 1497
SURVIVES = ["--mpiexec-args", "--with-ft ulfm"]


def trained(psgd_command, folder, name, *words):
    words = [*words, "--checkpoint-dir", str(folder / name), "--checkpoint-every", "20", "--epochs", "3", "--json"]
    log = ["--log", str(folder / f"{name}.log"), "--save", str(folder / f"{name}.npz")]
    return psgd_command("train", *words, *log, timeout=120)


def bits(path):
    with np.load(path) as saved:
        return {name: saved[name].tobytes() for name in saved}


def events_of(path, *kinds):
    return [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] in kinds]


@pytest.mark.parametrize(
    ("words", "faults", "lost", "joined"),
    [
        (["--workers", "2"], "kill:s0@50", [0], [3]),
        (["--mesh", "pipe=2", "--workers", "1"], "kill:0@70", [0, 1], [2, 3]),  # both stages at once
        (["--shard", "3", "--workers", "2"], "kill:0@50", [0], [2]),
    ],
)
def test_spares_take_the_places_of_the_dead(words, faults, lost, joined, psgd_command, tmp_path):
    assert trained(psgd_command, tmp_path, "whole", *words).returncode == 0
    done = trained(
        psgd_command, tmp_path, "lost", *words, "--spares", str(len(lost)), "--inject", f"{faults},compute:0.005"
    )
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["lost_ranks"] == lost and result["samples"] == 3 * SAMPLES
    assert bits(tmp_path / "lost.npz") == bits(tmp_path / "whole.npz")
    *deaths, again = events_of(tmp_path / "lost.log", "lost", "restart")
    assert [event["rank"] for event in deaths] == lost and all(event["cause"] for event in deaths)
    assert again["joined"] == joined and again["step"] % 20 == 0 and again["step"] > 0
    assert done.stderr.count("the run begins again at step") == 1


def test_without_spares_fewer_go_on(psgd_command, tmp_path):
    done = trained(psgd_command, tmp_path, "fewer", "--workers", "3", *SURVIVES, "--inject", "kill:s0@45,compute:0.005")
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["workers"], result["lost_ranks"], result["samples"]) == (2, [0], 3 * SAMPLES)
    assert result["test_accuracy"] > 0.9
    assert re.search(r"begins again at step [24]0 with 2 workers; 0 spares left", done.stderr)
    assert "the checkpoint has" not in done.stderr  # it has just said so


def test_too_few_are_left(psgd_command, tmp_path):
    done = trained(psgd_command, tmp_path, "few", "--workers", "1", *SURVIVES, "--inject", "kill:s0@60,compute:0.01")
    assert done.returncode not in (0, 4) and done.seconds < 60
    assert re.search(r"too few are left .* step \d0; the same command with --resume continues from it", done.stderr)


@pytest.mark.parametrize(
    ("strategy", "first", "words"),
    [
        ("allreduce", 1, []),
        ("easgd", 2, ["--easgd-order", "round-robin", "--period", "5", "--inject", "slow:1:3,compute:0.001"]),
        ("decentralized", 2, ["--inject", "slow:1:3,compute:0.001"]),
    ],
)
def test_workers_join_at_an_epochs_end(strategy, first, words, psgd_command, tmp_path):
    words = ["--grow", f"0.3:{first},1:{first + 1}", "--strategy", strategy, *words]
    done = trained(psgd_command, tmp_path, "grown", *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["workers"], result["lost_ranks"], result["samples"]) == (first + 1, [], 3 * SAMPLES)
    assert f"the run goes on with {first + 1} workers" in done.stderr and "the checkpoint has" not in done.stderr
    (grown,) = events_of(tmp_path / "grown.log", "grow")
    assert (grown["ranks"], grown["joined"], grown["workers"]) == ([*range(first + 1)], [first], first + 1)
    starts = events_of(tmp_path / "grown.log", "start")
    assert [event["workers"] for event in starts] == [first, first + 1]
    # Where the first part has ended: no step is made twice, and none is left out.
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "grown").glob("step-*/manifest.json")]
    assert any(each["samples"] == SAMPLES and each["run"]["workers"] == first for each in manifests)


@pytest.mark.parametrize(("strategy", "faults", "lost"), [("sync", "kill:1@20", 2), ("allreduce", "kill:0@20", 0)])
def test_a_spare_joins_a_run_that_has_gone_on_without_a_worker(strategy, faults, lost, psgd_command, tmp_path):
    words = ["--strategy", strategy, "--workers", "3", "--spares", "1", "--inject", f"{faults},compute:0.005"]
    done = trained(psgd_command, tmp_path, "refilled", *words)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["workers"], result["lost_ranks"], result["samples"]) == (3, [lost], 3 * SAMPLES)
    death, joined = events_of(tmp_path / "refilled.log", "lost", "grow", "restart")
    assert (death["rank"], joined["event"], joined["workers"]) == (lost, "grow", 3)
    assert joined["joined"] == [4 if strategy == "sync" else 3]


def test_what_is_refused_is_refused_by_all(psgd_command, tmp_path):
    (tmp_path / "x.txt").write_text("abc")
    done = trained(psgd_command, tmp_path, "wrong", "--spares", "1", "--dataset", str(tmp_path / "none.npz"))
    assert done.returncode == 2 and done.stderr.count("error") == 1, done.stderr


DIES_AT_THE_START = """
import os, signal, sys
from mpi4py import MPI
from psgd.launch.cli import main
from psgd.worker.serverless.lockstep import LockstepWorker

def start(self, real=LockstepWorker.start):
    if MPI.COMM_WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self)

LockstepWorker.start = start
main()
"""


def test_a_spare_takes_the_place_of_a_worker_that_dies_before_the_first_step(job, tmp_path):
    words = ["psgd", "train", "--strategy", "allreduce", "--hidden", "16", "--epochs", "1", "--json", "--spares", "1"]
    words += ["--checkpoint-dir", str(tmp_path / "saves"), "--checkpoint-every", "8"]
    done = job(4, f"import sys\nsys.argv = {words}\n{DIES_AT_THE_START}", ulfm=True, timeout=90)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["workers"], result["lost_ranks"], result["samples"]) == (3, [1], SAMPLES)
    assert done.stderr.count("the run begins again at step 0") == 1
