import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.slurm import training
from psgd.launch.slurm.templates import KINDS, TRIALS


def test_what_makes_the_kind_stays_unless_it_is_named():
    assert training.training("gpu_allreduce", ["--lr", "1"]) == [
        *("--strategy", "allreduce", "--device", "cuda", "--lr", "1")
    ]
    assert training.training("gpu_allreduce", ["--strategy=sync"]) == ["--device", "cuda", "--strategy=sync"]
    assert training.training("array", None)[2:] == list(KINDS["array"].example)


def test_trials():
    assert training.trials("long_job", None, ["--lr 1"]) == []
    assert training.trials("array", None, ["--lr  1 ", "--lr 2"]) == ["--lr 1", "--lr 2"]
    assert training.trials("array", None, []) == list(TRIALS)
    assert training.trials("array", ["--lr=1"], []) == ["--batch-size 16", "--batch-size 32", "--batch-size 64"]
    with pytest.raises(UsageError, match="nothing is left to try"):
        training.trials("array", ["--lr", "1", "--batch-size", "8"], [])


def test_a_users_file_has_its_whole_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["--model", "net.py:make", "--dataset=a b/data.py:read", "--log", "net.py:make", "--seed", "1"]
    whole = ["--model", f"{tmp_path}/net.py:make", f"--dataset={tmp_path}/a b/data.py:read"]
    assert training.training("cpu_parameter_server", words) == ["--strategy", "sync", *whole, *words[3:]]
    assert training.trials("array", None, ["--model net.py:make", "--model mlp"]) == [
        f"--model {tmp_path}/net.py:make",
        "--model mlp",
    ]


def test_words():
    words = ["--lr", "1", "--epochs=3", "--lr=2", "--resume"]
    assert training.names(words) == {"--lr", "--epochs", "--resume"}
    assert training.value(words, "--lr") == "2"
    assert training.value(words, "--epochs") == "3"
    assert training.value(words, "--seed") is None


def test_numbers():
    assert training.number(["--workers", "4"], "--workers", None) == 4
    assert training.number(["--workers", "4"], "--workers", 4) == 4
    assert training.number([], "--workers", 5) == 5
    with pytest.raises(UsageError, match="expected a whole number, got 'four'"):
        training.number(["--workers", "four"], "--workers", None)
    with pytest.raises(UsageError, match="--workers: 5 before --, 4 after it"):
        training.number(["--workers", "4"], "--workers", 5)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--spares 1", "--spares, --grow"),
        ("--grow 0.5:1,1:2", "--spares, --grow"),
        ("--replicas=1", "--replicas"),
        ("--replicas 1 --replicas 0", None),
        ("--drop-straggler-after 60", "--drop-straggler-after"),
        ("--survive --epochs 2", "--survive"),
        ("--no-survive", None),
        ("--survive --no-survive", None),
        ("--no-survive --survive", "--survive"),
        ("--survive True --lr 0.1", None),
        ("--survive False", None),
        ("--survive False --survive", "--survive"),
        ("--epochs 2 --spares 0", None),
    ],
)
def test_which_runs_outlive_a_rank(words, option):
    assert training.outlives(words.split()) == option
