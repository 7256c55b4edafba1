"""`psgd bench gpt2`: wrong options, its estimate, and a run of two ranks without GPUs."""

import json

import pytest

SMALL = ("--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--vocabulary", "256")


@pytest.mark.parametrize(
    "arguments", [("--layers", "0"), ("--shard", "1"), ("--batch-size", "12", "--microbatch", "4"), ("surplus",)]
)
def test_wrong_options(psgd_command, arguments):
    result = psgd_command("bench", "gpt2", *arguments, timeout=60)
    assert result.returncode == 2 and result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1 and result.stderr.startswith("psgd: error: ")


def test_the_estimate_starts_nothing(psgd_command):
    result = psgd_command("bench", "gpt2", *SMALL, "--estimate", timeout=60)
    assert result.returncode == 0 and "fits" in result.stdout and "worker, 2 of them, on cuda" in result.stdout


@pytest.mark.job
def test_a_run(psgd_command):
    result = psgd_command("bench", "gpt2", *SMALL, "--device", "cpu", "--steps", "3", timeout=240)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["psgd"]["losses"]) == 3
