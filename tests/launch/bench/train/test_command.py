"""`psgd bench train`: wrong options, and short real runs with and without a straggler."""

import importlib
import importlib.util
import json

import pytest

from psgd.launch.bench.train import runs

pytestmark = pytest.mark.one_mpi  # `psgd train` is what has an MPI, and tests of its own

train = importlib.import_module("psgd.launch.bench.train.command")  # the package has the command under that name
KEYS = {
    *("strategy", "workers", "servers", "device", "mpi", "epochs", "steps", "samples", "seconds"),
    *("samples_per_second", "train_loss", "test_accuracy", "bytes_sent", "bytes_received", "staleness"),
    *("lost_ranks", "checkpoint", "seconds_to_accuracy", "dataset", "model", "batch_size", "lr", "seed"),
    *("name", "options", "inject", "seeds", "against", "ratio", "test_accuracy_interval", "waited_share"),
}


WRONG_OPTIONS = [
    ("--dataset", "nothing"),
    ("--model", "transformer"),
    ("--model", "gpt"),
    ("--dataset", "genesis"),
    ("--strategies", "single,magic"),
    ("--strategies", ""),
    ("--peers", "torch,hogwild"),
    ("--modes", "single"),
    ("--lr", "nan"),
    ("--epochs", "0"),
    ("--workers", "none"),
    ("--target-accuracy", "1.5"),
    ("--target-accuracy", "nan"),
    ("--inject", "slow:2:4"),
    ("--plot", "figure.doc"),
]


def test_wrong_options(refused):
    refused(*[("bench", "train", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


@pytest.mark.job
def test_refused_as_ranks_of_a_job(psgd_command):
    """Rank 0 says so: a launcher ends the others as the first of them fails, maybe before they have spoken."""
    for command in ("train", "peers", "faults"):
        result = psgd_command("bench", command, n=3, timeout=60)
        assert result.returncode == 2
        assert result.stderr.count(f"psgd: error: bench {command}: starts the processes of each run itself") == 1


@pytest.mark.job
@pytest.mark.alone
def test_a_straggler_holds_up_those_who_wait_for_it(psgd_command):
    """Worker 1 takes 0.2 s for a gradient and worker 0, which evaluates, 0.02 s; an epoch has 3 steps of both."""
    slow = ("--inject", "compute:0.02,slow:1:10", "--target-accuracy", "0.01")  # the first evaluation has that
    size = ("--dataset", "digits", "--epochs", "2", "--seeds", "1", "--batch-size", "256", "--peers", "none")
    answer = psgd_command("bench", "train", "--strategies", "sync,hogwild", *slow, *size, "--json", timeout=110)
    assert answer.returncode == 0, answer.stderr
    sync, hogwild = map(json.loads, answer.stdout.splitlines())
    for row, name in ((sync, "sync"), (hogwild, "hogwild")):
        assert row.keys() >= KEYS
        assert (row["name"], row["samples"], row["workers"], row["epochs"]) == (name, 2 * 1497, 2, 2)
        assert row["test_accuracy"] > 0.5
        assert row["seconds"] >= 1.2
    assert 0.6 <= sync["seconds_to_accuracy"] < sync["seconds"]
    assert hogwild["seconds_to_accuracy"] < 0.4 * hogwild["seconds"]


@pytest.mark.job
def test_one_process_with_a_table_and_a_picture(psgd_command, tmp_path):
    torch, picture = importlib.util.find_spec("torch"), importlib.util.find_spec("matplotlib")
    plot = ("--plot", str(tmp_path / "a.png")) if picture else ()
    few = ("--strategies", "single", "--peers", "torch", "--dataset", "digits", "--epochs", "1", "--seeds", "1")
    answer = psgd_command("bench", "train", *few, "--inject", "slow:1:100", *plot, timeout=110)
    assert answer.returncode == 0, answer.stderr
    head, *lines = [line.split() for line in answer.stdout.splitlines()]
    assert head[:3] == ["name", "samples/s", "accuracy"]
    assert [line[0] for line in lines] == (["single", "torch"] if torch else ["single"])
    assert all(float(line[2]) > 0.8 for line in lines)
    assert (tmp_path / "a.png").exists() == bool(picture)


def test_peers_are_left_out_without_pytorch_and_a_failure_is_the_exit_code(monkeypatch, capfd):
    asked = []

    def run(names, options, seeds, tell):
        asked.extend(names)
        return {}

    monkeypatch.setattr(train, "has_torch", lambda: False)
    monkeypatch.setattr(runs, "run", run)
    arguments = ["--dataset", "digits", "--strategies", "ssp,easgd", "--peers", "ddp"]
    assert train.train.main(arguments, standalone_mode=False) == 1
    assert asked == ["ssp", "easgd"]
    assert capfd.readouterr().err == "psgd: PyTorch is not installed: its peers are omitted\n"
