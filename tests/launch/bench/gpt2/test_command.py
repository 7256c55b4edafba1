"""`psgd bench gpt2`: wrong options, its estimate, and a run of two ranks without GPUs."""

import json

import pytest

pytestmark = pytest.mark.one_mpi

SMALL = ("--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--vocabulary", "256")


WRONG_OPTIONS = [("--layers", "0"), ("--shard", "1"), ("--batch-size", "12", "--microbatch", "4"), ("surplus",)]


def test_wrong_options(refused):
    refused(*[("bench", "gpt2", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


def test_the_estimate_starts_nothing(psgd_command):
    result = psgd_command("bench", "gpt2", *SMALL, "--estimate", timeout=60)
    assert result.returncode == 0 and "fits" in result.stdout and "worker, 2 of them, on cuda" in result.stdout


@pytest.mark.job
def test_a_run(psgd_command):
    result = psgd_command("bench", "gpt2", *SMALL, "--device", "cpu", "--steps", "3", timeout=240)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["psgd"]["losses"]) == 3
