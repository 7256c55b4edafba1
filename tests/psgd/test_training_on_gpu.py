"""`psgd train --device cuda` with every strategy, as jobs of their own on one GPU that all share."""

import json
import subprocess
import sys

import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu
CASES = {
    "single": "--workers 1 --servers 0",
    "adam": "--workers 1 --servers 0 --optimizer adam --lr 0.002 --clip-norm 1",
    "sync": "--scale-lr",
    "sync-server-cuda": "--scale-lr --server-device cuda --optimizer momentum --lr 0.02",
    "async": "",
    "ssp": "--scale-lr",
    "softsync": "",
    "allreduce": "--scale-lr --data-device cpu",
    "averaging": "",
    "easgd": "",
    "easgd-round-robin": "--easgd-order round-robin",
    "easgd-async": "--easgd-order async",
    "hogwild": "",
    "decentralized": "",
    "allreduce-pipe": "--mesh pipe=2",
    "allreduce-zero-bubble": "--mesh pipe=2 --pipe-schedule zero-bubble --optimizer momentum --lr 0.02 --clip-norm 1",
    "allreduce-pipedream": "--mesh pipe=2,data=2 --pipe-schedule pipedream --scale-lr",
    "allreduce-2bw": "--mesh pipe=2 --pipe-schedule pipedream-2bw --optimizer momentum --lr 0.02 --data-device cpu",
    "sync-pipedream": "--mesh pipe=2,data=2 --servers 1 --pipe-schedule pipedream --scale-lr",
    "allreduce-tensor": "--mesh tensor=2",
    "allreduce-all": "--mesh pipe=2,tensor=2,data=2 --scale-lr",
    "sync-pipe": "--mesh pipe=2,data=2 --servers 1 --scale-lr --data-device cpu",
    "allreduce-compress": "--scale-lr --compress threshold",
    "allreduce-offload": "--scale-lr --offload optimizer",
    "sync-offload": "--scale-lr --offload parameters",
    "single-offload": "--workers 1 --servers 0 --offload optimizer --offload-staleness 1",
}


def train(*options):
    command = [sys.executable, "-m", "psgd.launch", "train", "--json", "--epochs", "8", "--device", "cuda", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_learns_as_on_the_host(case):
    cupy()
    strategy = "sync" if case in ("single", "adam", "single-offload") else case.split("-")[0]
    result = train("--strategy", strategy, *CASES[case].split())
    assert result["device"] == "cuda"
    assert result["samples"] == 8 * result["train_samples"]
    assert result["test_accuracy"] >= 0.9
    assert 0 < result["train_loss"] < 0.5


@pytest.mark.parametrize("how", ["optimizer", "parameters", "optimizer --offload-staleness 1"])
def test_offload_has_the_bits_of_a_run_without(how, tmp_path):
    cupy()
    alone = ["--workers", "1", "--servers", "0", "--optimizer", "adam", "--lr", "0.002", "--checkpoint-every", "100"]
    whole = train(*alone, "--checkpoint-dir", str(tmp_path / "a"))
    got = train(*alone, "--checkpoint-dir", str(tmp_path / "b"), "--offload", *how.split())
    if "staleness" in how:
        assert got["test_accuracy"] == pytest.approx(whole["test_accuracy"], abs=0.03)
    else:
        assert (got["train_loss"], got["test_loss"]) == (whole["train_loss"], whole["test_loss"])
    stopped = train(*alone, "--checkpoint-dir", str(tmp_path / "c"), "--epochs", "4", "--offload", *how.split())
    again = train(*alone, "--checkpoint-dir", str(tmp_path / "c"), "--resume", "--offload", *how.split())
    assert again["samples"] == got["samples"] > stopped["samples"]
    if "staleness" not in how:
        assert again["test_loss"] == got["test_loss"]


@pytest.mark.parametrize(
    "options",
    [
        "--workers 1 --servers 0",
        "--strategy allreduce",
        "--strategy sync",
        "--strategy allreduce --mesh pipe=2",
        "--strategy allreduce --mesh pipe=2 --pipe-schedule pipedream",
    ],
)
def test_goes_on_from_a_checkpoint(options, tmp_path):
    cupy()
    folder = ("--checkpoint-dir", str(tmp_path), "--checkpoint-every", "40", *options.split())
    whole = train(*folder, "--optimizer", "momentum", "--lr", "0.02")
    again = train(*folder, "--optimizer", "momentum", "--lr", "0.02", "--resume")
    assert again["samples"] == whole["samples"]
    assert again["test_accuracy"] == pytest.approx(whole["test_accuracy"], abs=0.02)
