"""hogwild's memory outlives its writers: a run goes on without workers that are killed, also when it is done."""

import json
from pathlib import Path

import pytest
from harness import mpi

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]


@pytest.mark.parametrize("faults", ["kill:1@9,kill:0@14,compute:0.003", "kill:1@46,kill:2@44,slow:2:8,compute:0.001"])
def test_each_sample_is_taken_exactly_once(faults, psgd_command, tmp_path):
    words = ["--strategy", "hogwild", "--workers", "3", "--epochs", "3", "--json"]
    words += ["--checkpoint-dir", str(tmp_path / "saves"), "--checkpoint-every", "7"]
    done = psgd_command("train", *words, "--inject", faults, timeout=90)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert sorted(result["lost_ranks"]) == sorted(int(each[5]) for each in faults.split(",")[:2])
    assert result["samples"] == 3 * 1497
    assert result["test_accuracy"] > 0.8
    newest = json.loads((Path(result["checkpoint"]) / "manifest.json").read_text())
    lost = newest["run"].get("lost", [])
    assert newest["run"]["workers"] == 3 - len(lost)
    assert len([each for each in newest["shards"] if each["name"].startswith("worker")]) == 3 - len(lost)
