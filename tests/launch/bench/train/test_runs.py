"""The runs of `psgd bench train`: what each is told, what is left out, and what the seeds tell together."""

import json
import math

import pytest

from psgd.launch.bench.peers.torch_options import TorchOptions
from psgd.launch.bench.train import runs as train_runs

OPTIONS = TorchOptions("", "digits", "mlp", 3, 64, 0.1, 0, 2, inject="compute:0.01,slow:1:4")


def result(speed, accuracy, seconds=1.0, **more):
    common = {"samples_per_second": speed, "test_accuracy": accuracy, "seconds": seconds, "steps": 7}
    return common | {"waited_seconds": [0.25, 0.5]} | more


def test_summary():
    runs = {
        "single": [result(300.0, 0.5), result(100.0, 0.7), result(250.0, 0.9)],
        "torch": [result(90.0, 0.5), result(100.0, 0.5), result(1000.0, 0.5)],
        "softsync": [result(10.0, 0.1, seconds=3.0)],
    }
    single, torch, softsync = train_runs.summarize(runs, OPTIONS)
    assert (single["samples_per_second"], single["against"], single["ratio"]) == (250.0, "torch", 2.5)
    assert single["test_accuracy"] == pytest.approx(0.7)
    assert single["test_accuracy_interval"] == pytest.approx(4.30265 * 0.2 / 3**0.5, rel=1e-5)
    assert (torch["against"], torch["ratio"], torch["test_accuracy_interval"]) == (None, None, 0.0)
    assert (softsync["against"], softsync["ratio"], softsync["test_accuracy_interval"]) == (None, None, None)
    assert [row["seconds_to_accuracy"] for row in (single, torch, softsync)] == [None] * 3
    assert [row["waited_share"] for row in (single, torch, softsync)] == [0.375, None, 0.125]
    assert [row["options"] for row in (single, torch, softsync)] == ["", "", "--softsync=2"]
    assert [row["inject"] for row in (single, torch, softsync)] == ["compute:0.01"] * 2 + [OPTIONS.inject]


def test_the_time_to_an_accuracy_is_that_of_the_first_evaluation_that_has_it():
    one = {"evaluations": [[1.0, 0.3], [2.0, 0.8], [3.0, 0.7], [4.0, 0.9]]}
    assert [train_runs.reached(one, target) for target in (0.3, 0.75, 0.8, 0.85, 0.91)] == [1, 2, 2, 4, math.inf]


def test_a_median_of_runs_that_did_not_all_get_there():
    def row(*accuracies):
        runs = {"sync": [result(1.0, 0.5, evaluations=[[5.0, accuracy]]) for accuracy in accuracies]}
        return train_runs.summarize(runs, OPTIONS, 0.5)[0]

    assert row(0.5, 0.4, 0.6)["seconds_to_accuracy"] == 5.0
    assert row(0.5, 0.4)["seconds_to_accuracy"] is None
    assert row(0.5, 0.4)["seconds_to_accuracy_runs"] == [5.0, None]
    assert "evaluations" not in row(0.5)


def test_what_a_run_is_told(tmp_path):
    options = train_runs.fitted(OPTIONS, "ssp", 3)
    words = train_runs.command(options, tmp_path / "log")
    assert {"--strategy=ssp", "--staleness=3", "--scale-lr", "--lr=0.1", "--eval-every=0", "--seed=3"} <= set(words)
    assert f"--inject={OPTIONS.inject}" in words
    assert not any(word.startswith(("--log", "--servers")) for word in words)
    alone = train_runs.command(train_runs.fitted(OPTIONS, "single", 0), tmp_path / "log")
    assert {"--strategy=sync", "--workers=1", "--servers=0", "--inject=compute:0.01"} <= set(alone)
    peer = train_runs.fitted(OPTIONS, "ddp", 1)
    assert json.loads(train_runs.command(peer, tmp_path)[-1]) == {**vars(OPTIONS), "name": "ddp", "seed": 1, "lr": 0.2}


def test_a_run_that_fails_is_left_out_in_one_line(monkeypatch, capfd):
    def output(command, timeout_s):
        if "ddp" in command[-1]:
            raise RuntimeError("exit code 1: boom\n  at last")
        return "noise\n" + json.dumps(result(5.0, 0.5))

    monkeypatch.setattr(train_runs.processes, "output", output)
    runs = train_runs.run(["torch", "ddp", "torch-hogwild"], OPTIONS, 2)
    assert {name: len(results) for name, results in runs.items()} == {"torch": 2, "torch-hogwild": 2}
    assert capfd.readouterr().err == "psgd: error: bench train: ddp omitted: exit code 1: boom at last\n"
