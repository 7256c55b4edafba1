"""`psgd train` whose workers are killed: it goes on, applies each sample once, and says what happened."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from harness import mpi
from harness.losing import named, sync_that_loses_one
from mpi4py import MPI

from psgd.config import configure
from psgd.data.sampler import Sampler
from psgd.training.survival.survival import Survival

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]
SAMPLES = 1497


def events_of(path, kind):
    return [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] == kind]


@pytest.mark.parametrize(
    ("strategy", "faults", "servers", "ranks"),
    [
        ("async", "kill:1@20,compute:0.003", 1, [2]),
        ("ssp", "kill:0@9,kill:2@30,compute:0.003", 2, [2, 4]),
        ("softsync --accumulate 5", "kill:2@45,slow:2:8,compute:0.001", 2, [4]),  # when the others are done
        ("sync", "kill:1@5,kill:0@6", 1, [1, 2]),
    ],
)
def test_each_sample_is_applied_exactly_once(strategy, faults, servers, ranks, psgd_command, tmp_path):
    words = ["--workers", "3", "--epochs", "3", "--log", str(tmp_path / "log"), "--json"]
    done = psgd_command(
        "train", "--strategy", *strategy.split(), *words, "--servers", str(servers), "--inject", faults, timeout=90
    )
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert sorted(result["lost_ranks"]) == ranks and result["samples"] == 3 * SAMPLES
    assert result["test_accuracy"] > 0.9
    events = events_of(tmp_path / "log", "lost")
    assert sorted(event["rank"] for event in events) == ranks
    assert all(event["cause"] and event["time"] > 0 for event in events)
    assert done.stderr.count(" is lost after ") == len(ranks)
    # One after each epoch, by the first of those that live, and the last by all.
    assert len(events_of(tmp_path / "log", "eval")) == 3


@pytest.mark.parametrize(("strategy", "gone"), [("sync", 1), ("allreduce", 0)])
def test_a_checkpoint_after_a_death_is_resumed_in_any_number_which_may_lose_more(
    strategy, gone, psgd_command, tmp_path
):
    saves = tmp_path / "saves"
    words = ["--strategy", strategy, "--epochs", "3", "--checkpoint-dir", str(saves), "--json"]
    words += ["--checkpoint-every", "8", "--checkpoint-keep", "99"]
    done = psgd_command("train", *words, "--workers", "3", "--inject", f"kill:{gone}@11,compute:0.003", timeout=90)
    assert done.returncode == 4 and json.loads(done.stdout.splitlines()[-1])["samples"] == 3 * SAMPLES
    after = json.loads((saves / "step-000000024" / "manifest.json").read_text())
    assert after["run"]["workers"] == 2 and after["run"]["lost"] == [gone]
    for each in saves.glob("step-*[0-9]"):  # a dead rank may leave a part of one
        if int(each.name[5:]) > 24:
            shutil.rmtree(each)
    kills = "kill:3@30,kill:1@31,compute:0.003"
    done = psgd_command("train", *words, "--resume", "--workers", "4", "--inject", kills, timeout=90)
    assert done.returncode == 4, done.stderr
    assert "has 2 workers after 1 had died, this run has 4" in done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["lost_ranks"]) == 2 and result["test_accuracy"] > 0.9
    # The epoch continues at a whole step of all; from there on each sample is applied exactly once.
    shares = [Sampler(SAMPLES, 4, worker, 32, 0) for worker in range(4)]
    behind = sum(share.drawn(share.steps_behind(after["samples"])) for share in shares)
    assert result["samples"] == after["samples"] + 3 * SAMPLES - behind


@pytest.mark.parametrize(("accumulate", "death"), [(1, 2), (2, 1)])
def test_sync_is_one_process_that_loses_that_worker_at_that_step(psgd_command, tmp_path, accumulate, death):
    words = ["--model", "softmax", "--workers", "3", "--epochs", "2", "--batch-size", "100", "--lr", "0.1"]
    path = tmp_path / "weights.npz"
    words += ["--accumulate", str(accumulate), "--inject", f"kill:1@{accumulate * (death + 1)}"]
    done = psgd_command("train", *words, "--save", str(path), timeout=90)
    assert done.returncode == 4, done.stderr
    with np.load(path) as saved:
        found = dict(saved)
    expected = named(sync_that_loses_one(100, 2, 0.1, death, accumulate))
    assert sorted(found) == sorted(expected)
    for name, right in expected.items():
        np.testing.assert_allclose(found[name].ravel(), right, rtol=1e-4, atol=1e-5)


def test_another_rank_takes_over_what_rank_0_does(psgd_command, tmp_path):
    log, weights = tmp_path / "log", tmp_path / "weights.npz"
    words = ["--strategy", "allreduce", "--workers", "3", "--epochs", "6", "--log", str(log), "--save", str(weights)]
    words += ["--inject", "kill:0@20,kill:1@50,compute:0.003", "--json"]
    done = psgd_command("train", *words, timeout=90)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout)
    assert result["lost_ranks"] == [0, 1] and result["samples"] == 6 * SAMPLES
    assert result["workers_applied"][:2] == [19, 49] and result["test_accuracy"] > 0.9 and weights.exists()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("eval") == 6
    assert [event["rank"] for event in events if event["event"] == "lost"] == [0, 1]
    counted = [event["samples"] for event in events if event["event"] == "progress"]
    assert counted == sorted(counted)
    said = done.stderr
    assert "rank 1 goes on with the log" in said and "rank 2 goes on with the log" in said
    assert "epoch 6/6" in said and said.count(" is lost after ") == 2


def test_servers_are_survived_that_hold_each_shard_twice_and_server_0_too(psgd_command, tmp_path):
    log, weights = tmp_path / "log", tmp_path / "weights.npz"
    words = ["--strategy", "softsync", "--softsync", "2", "--servers", "3", "--replicas", "1", "--workers", "3"]
    faults = "kill:s0@20,kill:1@30,kill:s2@50,compute:0.003"
    words += ["--epochs", "5", "--optimizer", "momentum", "--lr", "0.05", "--json", "--log", str(log)]
    done = psgd_command("train", *words, "--inject", faults, "--save", str(weights), timeout=120)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert sorted(result["lost_ranks"]) == [0, 2, 4] and result["samples"] == 5 * SAMPLES
    assert result["test_accuracy"] > 0.9 and weights.exists()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start" and kinds[-1] == "end"
    lost = [event for event in events if event["event"] == "lost"]
    assert [event["server"] for event in lost if "server" in event] == [0, 2]
    assert [event["worker"] for event in lost if "worker" in event] == [1]
    assert [event["workers_left"] for event in lost][-1] == 2
    assert "rank 1 goes on with the log" in done.stderr and "does not survive the next one" in done.stderr


def test_a_server_is_not_survived(psgd_command):
    done = psgd_command("train", "--inject", "kill:s0@30", timeout=90)
    assert done.returncode not in (0, 4) and done.seconds < 30
    assert "(dead: rank 0)" in done.stderr


DIES_BEHIND_THE_LAST_STEP = """
import os, signal, sys
from mpi4py import MPI
from psgd.checkpoint.saver import Saver
from psgd.launch.cli import main

def close(self, failed, real=Saver.close):
    if MPI.COMM_WORLD.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, failed)

Saver.close = close
sys.argv = ["psgd", "train", "--strategy", "STRATEGY", "--hidden", "16", "--epochs", "1", "--json"]
main()
"""


@pytest.mark.parametrize("strategy", ["hogwild", "sync"])
def test_a_run_whose_only_counters_die_behind_the_last_step_has_no_result(strategy, job):
    done = job(3, DIES_BEHIND_THE_LAST_STEP.replace("STRATEGY", strategy), ulfm=True, timeout=60)
    assert done.returncode not in (0, 3, 4) and "(dead: rank 0)" in done.stderr and not done.stdout


DIES_AS_IT_SAVES = """
import os, signal, sys
from mpi4py import MPI
from psgd.checkpoint.writer import Writer
from psgd.launch.cli import main

def save(self, *words, real=Writer.save, **more):
    if MPI.COMM_WORLD.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, *words, **more)

Writer.save = save
words = ["--strategy", "allreduce", "--hidden", "16", "--epochs", "1", "--checkpoint-dir", DIRECTORY]
sys.argv = ["psgd", "train", *words, "--checkpoint-every", "10", "--json"]
main()
"""


def test_a_checkpoint_whose_leader_died_is_gone_at_the_end_of_the_run(job, tmp_path):
    saves = tmp_path / "saves"
    done = job(3, DIES_AS_IT_SAVES.replace("DIRECTORY", repr(str(saves))), ulfm=True, timeout=60)
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["lost_ranks"] == [0]
    assert saves.is_dir() and not list(saves.glob("*.part"))


@pytest.mark.parametrize(("drawn", "left"), [(2, 2), (40, 0)])
def test_a_run_that_took_more_epochs_is_resumed_at_its_end(drawn, left):
    mesh = SimpleNamespace(workers=3, world=MPI.COMM_SELF)
    survival = Survival(configure(epochs=2, batch_size=4), mesh, 10, None, None, None)
    survival.resume([drawn] * 3)  # of 8, 6 and 6
    assert survival._ledger.lose(0, [0] * 3, {}, [1, 2])[0] == left
