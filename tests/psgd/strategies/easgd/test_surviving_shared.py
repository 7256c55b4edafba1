"""EASGD's shared centre outlives workers that are killed, and what they had not brought to it is done by others."""

import json
from pathlib import Path

import pytest
from harness import mpi

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]


@pytest.mark.parametrize("order", ["async", "hogwild"])
def test_each_sample_is_taken_exactly_once(order, psgd_command, tmp_path):
    words = [
        "--strategy",
        "easgd",
        "--easgd-order",
        order,
        "--period",
        "4",
        "--workers",
        "3",
        "--epochs",
        "3",
        "--json",
    ]
    words += ["--checkpoint-dir", str(tmp_path / "saves"), "--checkpoint-every", "7"]
    done = psgd_command("train", *words, "--inject", "kill:0@19,kill:2@46,slow:2:3,compute:0.002", timeout=90)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert sorted(result["lost_ranks"]) == [0, 2] and result["samples"] == 3 * 1497
    assert result["test_accuracy"] > 0.8
    newest = json.loads((Path(result["checkpoint"]) / "manifest.json").read_text())
    lost = newest["run"].get("lost", [])
    assert set(lost) <= {0, 2} and newest["run"]["workers"] == 3 - len(lost)
    assert len([each for each in newest["shards"] if each["name"].startswith("worker")]) == 3 - len(lost)


@pytest.mark.ranks(1)
def test_a_lock_that_a_dead_worker_holds_is_taken_from_it(comm):
    import numpy as np

    from psgd.collectives.mpi.wait import Waiter
    from psgd.strategies.easgd.shared_centre import SharedCentre

    memory = SharedCentre(comm, [0], np.zeros(4, np.float32), locks=True)
    memory._lock[0] = 2  # of worker 1, which is dead
    looked = []

    def look():
        looked.append(1)
        memory.unlock()

    moved = np.empty(4, np.float32)
    assert memory.exchange(moved, np.ones(4, np.float32), 0.5, Waiter(False, look)) == 1
    assert looked and moved.tolist() == [0.5] * 4
