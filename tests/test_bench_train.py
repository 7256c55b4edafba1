"""`psgd bench train`: wrong options, the summary's arithmetic, short real runs."""

import json

import pytest

from psgd.launch.bench import train_runs
from psgd.launch.bench.torch_options import Options
from psgd.launch.bench.train import MODES, PEERS

KEYS = {
    *("strategy", "workers", "servers", "device", "mpi", "epochs", "steps", "samples", "seconds"),
    *("samples_per_second", "train_loss", "test_accuracy", "bytes_sent", "bytes_received", "staleness"),
    *("lost_ranks", "checkpoint", "seconds_to_accuracy"),
    *("mode", "seeds", "against", "ratio", "test_accuracy_interval"),
}
OPTIONS = Options("torch", "digits", "mlp", 1, 64, 0.1, 0, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dataset", "nothing"),
        ("--model", "transformer"),
        ("--modes", "single,magic"),
        ("--modes", ""),
        ("--lr", "nan"),
        ("--lr", "0"),
        ("--epochs", "0"),
        ("--seeds", "0"),
        ("--batch-size", "0"),
        ("--workers", "none"),
    ],
)
def test_wrong_options(psgd_command, arguments):
    result = psgd_command("bench", "train", *arguments, timeout=30)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("psgd: error: ")


@pytest.mark.job
def test_refused_as_ranks_of_a_job(psgd_command):
    result = psgd_command("bench", "train", n=2, timeout=60)
    assert result.returncode != 0
    assert result.stderr.count("psgd: error: bench train: starts the processes of each mode itself") == 1


def result(speed, accuracy, seconds=1.0):
    return {"samples_per_second": speed, "test_accuracy": accuracy, "seconds": seconds, "steps": 7}


def test_summary():
    runs = {
        "single": [result(300.0, 0.5), result(100.0, 0.7), result(250.0, 0.9)],
        "torch": [result(90.0, 0.5), result(100.0, 0.5), result(1000.0, 0.5)],
        "sync": [result(10.0, 0.1)],
    }
    single, torch, sync = train_runs.summarize(runs, PEERS)
    assert (single["samples_per_second"], single["against"], single["ratio"]) == (250.0, "torch", 2.5)
    assert single["test_accuracy"] == pytest.approx(0.7)
    assert single["test_accuracy_interval"] == pytest.approx(4.30265 * 0.2 / 3**0.5, rel=1e-5)
    assert (torch["against"], torch["ratio"], torch["test_accuracy_interval"]) == (None, None, 0.0)
    assert (sync["against"], sync["ratio"], sync["test_accuracy_interval"]) == (None, None, None)
    assert sync["seconds_to_accuracy"] is None


def test_a_failing_mode_is_left_out(monkeypatch, capfd):
    def output(command, timeout_s):
        if "ddp" in command[-1]:
            raise RuntimeError("exit code 1: boom")
        return "noise\n" + json.dumps(result(5.0, 0.5))

    monkeypatch.setattr(train_runs.processes, "output", output)
    runs = train_runs.run(["torch", "ddp", "hogwild"], OPTIONS, 2)
    assert {mode: len(results) for mode, results in runs.items()} == {"torch": 2, "hogwild": 2}
    assert capfd.readouterr().err == "psgd: error: bench train: ddp left out: exit code 1: boom\n"


def test_steps_leave_no_worker_without_a_batch():
    pytest.importorskip("torch")
    from psgd.launch.bench.torch_train import steps_each

    assert steps_each(1497, 2, 64) == 12
    assert steps_each(129, 2, 64) == 1  # the second of two workers has 64 samples only
    assert steps_each(3, 4, 10) == 0


@pytest.mark.job
@pytest.mark.parametrize("modes", ["torch,ddp,hogwild", "single,sync,async"])
def test_digits(psgd_command, modes):
    if modes == "torch,ddp,hogwild":
        pytest.importorskip("torch")
    arguments = ("--dataset", "digits", "--epochs", "1", "--seeds", "1", "--modes", modes, "--json")
    answer = psgd_command("bench", "train", *arguments, timeout=110)
    assert answer.returncode == 0, answer.stderr
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [row["mode"] for row in rows] == modes.split(",")
    for row in rows:
        assert row.keys() >= KEYS
        assert row["samples_per_second"] > 0
        assert row["test_accuracy"] > 0.5
        assert row["samples"] == 1497
        assert row["workers"] == (1 if row["mode"] in ("single", "torch") else 2)


def test_modes_have_peers():
    assert set(MODES) == set(PEERS) | set(PEERS.values())
