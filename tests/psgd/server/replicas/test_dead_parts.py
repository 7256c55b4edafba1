"""Checkpoints where each shard is held twice: others write what dead servers had, and any number of servers resumes."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from harness import mpi

from psgd.checkpoint.state import State
from psgd.server.replicas import dead_parts
from psgd.server.replicas.holders import Holders

SYNC = ["--workers", "2", "--epochs", "3", "--hidden", "16", "--optimizer", "momentum", "--clip-norm", "0.5", "--json"]


def test_who_answers_for_a_shard_saves_it():
    server = SimpleNamespace(holders=Holders(4, [0, 2]), state_of=lambda shard: State(facts={"shard": shard}))
    for index, mine in ((1, ["server-0"]), (3, ["server-2"])):
        found = dead_parts.of(server, index, lambda state, shard: State(facts=state.facts | {"placed": shard}))
        assert found.writers == {"server-0": 1, "server-2": 3}
        assert {name: state.facts for name, state in found.states.items()} == {
            name: {"shard": int(name[-1]), "placed": int(name[-1])} for name in mine
        }


def weights(path):
    with np.load(path) as saved:
        return {name: saved[name].tobytes() for name in saved.files}


def keep_only_first_from(saves, step):
    """Of the checkpoints from that step on; there is one."""
    complete = saves.glob("step-*[0-9]")  # a dead rank may leave a part of one
    kept = min(each for each in complete if int(each.name[5:]) >= step)
    for each in saves.glob("step-*"):
        if each != kept:
            shutil.rmtree(each)
    return kept


@pytest.mark.job
@pytest.mark.timeout(500)
@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
def test_with_clipping_too_a_run_that_loses_servers_and_is_resumed_has_the_bits_of_an_undisturbed_one(
    psgd_command, tmp_path
):
    saves = tmp_path / "saves"
    words = ["--checkpoint-dir", str(saves), "--checkpoint-every", "8", "--checkpoint-keep", "99", "--replicas", "1"]

    def run(name, *options, code=4):
        done = psgd_command("train", *SYNC, *options, "--save", str(tmp_path / f"{name}.npz"), timeout=90)
        assert done.returncode == code, done.stderr
        return weights(tmp_path / f"{name}.npz"), json.loads(done.stdout.splitlines()[-1])

    whole, _ = run("whole", "--servers", "3", code=0)
    found, result = run("disturbed", *words, "--servers", "3", "--inject", "kill:s0@20,kill:s1@37")
    assert found == whole and result["lost_ranks"] == [0, 1]
    assert result["checkpoint"] == str(saves / "step-000000072")
    kept = keep_only_first_from(saves, 32)
    manifest = json.loads((kept / "manifest.json").read_text())
    assert [each["name"] for each in manifest["shards"]][:3] == ["server-0", "server-1", "server-2"]
    found, _ = run("resumed", *words, "--resume", "--servers", "2", "--inject", "kill:s1@43")
    assert found == whole
    assert (saves / "step-000000048").is_dir()
    # A spare joins at the end of the epoch in which a server dies, or at once where no holder of a shard is left.
    for name, faults, kinds in (
        ("joined", "kill:s1@10,kill:s0@40", ["lost", "grow", "lost", "grow"]),
        ("again", "kill:s0@20,kill:s1@21", ["lost", "lost", "lost", "restart"]),
    ):
        words[1], log = str(tmp_path / name), tmp_path / f"{name}.log"
        found, result = run(name, *words, "--servers", "2", "--spares", "2", "--log", str(log), "--inject", faults)
        assert found == whole and sorted(result["lost_ranks"]) == [0, 1]
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        assert [event for event in events if event in ("lost", "grow", "restart")] == kinds


@pytest.mark.job
@pytest.mark.timeout(300)
@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
def test_a_server_that_dies_as_it_saves_costs_that_checkpoint_and_no_sample(psgd_command, tmp_path):
    saves, log = tmp_path / "saves", tmp_path / "log"
    words = ["--strategy", "softsync", "--softsync", "2", "--workers", "3", "--epochs", "3", "--hidden", "16", "--json"]
    words += ["--checkpoint-dir", str(saves), "--checkpoint-every", "8", "--checkpoint-keep", "99", "--servers", "3"]
    done = psgd_command("train", *words, "--replicas", "1", "--inject", "kill:s2@24", "--log", str(log), timeout=90)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["lost_ranks"] == [2] and result["samples"] == 3 * 1497
    assert not list(saves.glob("*.part"))
    keep_only_first_from(saves, 30)
    done = psgd_command("train", *words, "--resume", timeout=90)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["samples"] == 3 * 1497
