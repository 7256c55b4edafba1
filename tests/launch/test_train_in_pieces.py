"""`psgd train --mesh`: how many ranks start, what is said of them, refusals, the result."""

import json

import numpy as np
import pytest

from psgd.config import TrainConfig
from psgd.kernels.errors import UsageError
from psgd.launch import options, train


@pytest.mark.parametrize(
    ("flags", "servers", "workers", "parts"),
    [
        ({"mesh": "pipe=2,tensor=2,data=2"}, 0, 2, 4),
        ({"mesh": "pipe=2"}, 0, 1, 2),
        ({"mesh": "pipe=3,data=2", "strategy": "sync"}, 1, 2, 3),
        ({"mesh": "data=3", "strategy": "sync"}, 1, 3, 1),
    ],
)
def test_ranks_that_are_started(flags, servers, workers, parts):
    config = options.build(flags)
    assert (*train.sizes(config), config.parts) == (servers, workers, parts)
    fitted = train.fit(config, (servers + workers) * parts)
    assert (fitted.servers, fitted.workers) == (servers, workers)


def test_a_job_of_others_has_as_many_copies_as_there_are_ranks_for():
    fitted = train.fit(options.build({"mesh": "pipe=2,tensor=2"}), 12)
    assert (fitted.servers, fitted.workers) == (0, 3)
    fitted = train.fit(options.build({"mesh": "pipe=2", "strategy": "sync", "servers": "2"}), 12)
    assert (fitted.servers, fitted.workers) == (2, 4)


@pytest.mark.parametrize(
    ("flags", "size", "message"),
    [
        ({"mesh": "pipe=4"}, 6, "--mesh pipe=4: expected a multiple of 4 ranks, got 6; start it with -n 4"),
        ({"mesh": "pipe=4"}, 2, "expected a multiple of 4 ranks, got 2"),
        ({"mesh": "pipe=2,data=2"}, 6, "--mesh pipe=2,data=2: expected 4 ranks, got 6; start it with -n 4"),
        (
            {"mesh": "pipe=2,data=2", "strategy": "sync"},
            4,
            "--mesh pipe=2,data=2 --servers 1: expected 6 ranks, got 4; start it with -n 6",
        ),
        ({"mesh": "pipe=2,data=1", "strategy": "sync", "servers": "3"}, 6, "--servers 3: expected 8 ranks, got 6"),
    ],
)
def test_ranks_that_do_not_make_the_mesh(flags, size, message):
    with pytest.raises(UsageError, match=message):
        train.fit(options.build(flags), size)


def test_a_mesh_of_one_rank_is_a_run_of_one_rank():
    config = options.build({"mesh": "pipe=1"})
    assert train.sizes(config) == (0, 1) and train.fit(config, 1).workers == 1
    assert TrainConfig().parts == 1


@pytest.mark.job
@pytest.mark.parametrize("n", [None, 4])
def test_a_run_in_pieces(psgd_command, tmp_path, n):
    weights, log = tmp_path / "w.npz", tmp_path / "run.jsonl"
    words = [
        "--mesh",
        "pipe=2,tensor=2",
        "--cut",
        "2",
        "--pipe-schedule",
        "gpipe",
        "--microbatches",
        "2",
        "--epochs",
        "2",
    ]
    words += ["--epochs", "2", "--verbose", "--json", "--save", str(weights), "--log", str(log)]
    done = psgd_command("train", *words, n=n, timeout=180)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["test_accuracy"] > 0.9 and result["samples"] == 2 * result["train_samples"]
    assert result["mesh"] == {"tensor": 2, "pipe": 2, "data": 1} and result["bubble"]["schedule"] == "gpipe"
    assert "mesh: tensor 2 (inside a node), pipe 2 (inside a node)" in done.stderr
    assert "worker 0 pipe=1,tensor=0" in done.stderr
    with np.load(weights) as found:
        assert found["linear1.weight"].shape == (64, 256) and found["linear2.bias"].shape == (10,)
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("start") == events.count("end") == 1 and events.count("eval") == 2


@pytest.mark.job
@pytest.mark.parametrize("n", [None, 4])
def test_what_the_model_does_not_allow_is_said_once(psgd_command, n):
    done = psgd_command("train", "--mesh", "pipe=4", n=n, timeout=120)
    assert done.returncode == 2
    expected = "psgd: error: cut: expected 1 to 3 stages for 3 layers, as each stage needs one, got 4"
    assert done.stderr.count(expected) == 1 and "Traceback" not in done.stderr


@pytest.mark.job
@pytest.mark.parametrize("stage", [1, 2])
def test_one_copy_has_nobody_to_share_with(psgd_command, stage):
    done = psgd_command("train", "--mesh", "pipe=2", "--shard", str(stage), timeout=120)
    expected = f"psgd: error: --shard {stage}: a single worker has nobody to share with; start more, or omit it\n"
    assert done.returncode == 2 and expected in done.stderr and done.stderr.count("error") == 1


@pytest.mark.job
def test_a_failure_on_one_rank_ends_all(psgd_command):
    words = ["--mesh", "pipe=2,data=2", "--inject", "raise:1@5", "--epochs", "500"]
    done = psgd_command("train", *words, timeout=120)
    assert done.returncode not in (0, 2) and "InjectedError" in done.stderr
