"""`psgd train --model FILE.py:make` as a command: alone, with its own ranks, in somebody's job, and its errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.job

NET = """
import torch
from torch import nn
print("made", __name__)

def make(data):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, data.classes))

def make_dataset():
    from psgd.data import load
    digits = load("digits")
    train, test = (torch.utils.data.TensorDataset(*(torch.tensor(each) for each in (part.x, part.y)))
                   for part in (digits.train, digits.test))
    return train, test

def raises():
    raise ValueError("not yet")
"""


@pytest.fixture
def net(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "net.py"
    path.write_text(NET)
    return str(path)


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (None, ["--workers", "1", "--servers", "0"]),
        (None, ["--strategy", "allreduce"]),
        (3, ["--strategy", "async"]),
        (None, ["--mesh", "pipe=2"]),
    ],
)
def test_it_trains(psgd_command, net, tmp_path, n, words):
    (tmp_path / "run.toml").write_text(f'model = "{net}:make"\ndataset = "{net}:make_dataset"\nepochs = 3\n')
    weights = tmp_path / "w.npz"
    done = psgd_command(
        "train", "--config", str(tmp_path / "run.toml"), "--json", "--save", str(weights), *words, n=n, timeout=180
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["test_accuracy"] > 0.85 and result["model"] == f"{net}:make"
    with np.load(weights) as found:
        assert found.files == ["1.weight", "1.bias", "3.weight", "3.bias"]
        assert found["1.weight"].shape == (32, 64)


@pytest.mark.one_mpi
def test_its_checkpoints_are_verified_exported_and_resumed_from_another_folder(psgd_command, net, tmp_path):
    runs, weights = tmp_path / "runs", tmp_path / "w.npz"
    words = ["train", "--model", f"{net}:make", "--checkpoint-dir", str(runs), "--checkpoint-every", "20"]
    assert psgd_command(*words, "--epochs", "1", timeout=180).returncode == 0
    assert psgd_command("checkpoint", "verify", str(runs)).returncode == 0
    assert psgd_command("checkpoint", "export", str(runs), "-o", str(weights)).returncode == 0
    with np.load(weights) as found:
        assert found.files == ["1.weight", "1.bias", "3.weight", "3.bias"]
    (tmp_path / "moved").mkdir()
    words[2] = f"{tmp_path}/moved/net.py:make"
    (tmp_path / "moved" / "net.py").write_text(NET + "# another\n")
    done = psgd_command(*words, "--resume", "--epochs", "2", timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the file has changed since the checkpoint") == 1
    done = psgd_command(*words, "--resume", "--seed", "3", timeout=180)
    assert done.returncode == 2 and "from a run with seed 0" in done.stderr


@pytest.mark.parametrize("n", [None, 2])
@pytest.mark.parametrize(
    ("function", "message"),
    [("raises", r"raised ValueError: not yet (net.py, line 17)"), ("nope", "net.py has no function nope")],
)
@pytest.mark.one_mpi
def test_an_error_is_one_message_and_exit_code_2(psgd_command, net, n, function, message):
    done = psgd_command("train", "--model", f"{net}:{function}", n=n, timeout=180)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(lines) == 1 and message in lines[0], done.stderr
    assert ("made" in done.stdout) == (function == "raises")  # what is not there is found before MPI starts


@pytest.mark.one_mpi
def test_the_files_in_the_documentation_train(psgd_command, tmp_path):
    pytest.importorskip("torch")
    page = (Path(__file__).parents[2] / "docs/training.md").read_text()
    module, layers = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "net.py").write_text(module)
    (tmp_path / "layers.py").write_text(layers)
    words = ["--epochs", "4", "--workers", "1", "--servers", "0", "--json"]
    for model, data, accuracy in (
        ("net.py", "digits", 0.85),
        ("net.py", "net.py", 0.95),
        ("layers.py", "digits", 0.85),
    ):
        dataset = data if data == "digits" else f"{tmp_path}/{data}:make_dataset"
        done = psgd_command("train", "--model", f"{tmp_path}/{model}:make", "--dataset", dataset, *words, timeout=180)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["test_accuracy"] > accuracy
