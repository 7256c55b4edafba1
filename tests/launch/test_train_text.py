"""`psgd train` on text: loss and accuracy per token, perplexity in the result, the log and the summary."""

import json
import math

import pytest

SMALL = ("--model", "gpt", "--layers", "1", "--width", "8", "--heads", "2", "--context", "8", "--epochs", "2")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "abc.txt"
    path.write_text("abcdefgh" * 150)
    return str(path)


@pytest.mark.job
@pytest.mark.parametrize("strategy", ["allreduce", "sync"])
def test_result_and_log(psgd_command, tmp_path, text, strategy):
    log = tmp_path / "run.log"
    options = ("--strategy", strategy, "--optimizer", "adam", "--lr", "0.03", "--batch-size", "4")
    result = psgd_command("train", "--dataset", text, *SMALL, *options, "--json", "--log", str(log), timeout=240)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["train_samples"], found["test_samples"]) == (124, 25)
    assert found["samples"] == 248
    assert found["tokens_per_second"] == pytest.approx(8 * found["samples_per_second"])
    assert found["test_perplexity"] == pytest.approx(math.exp(found["test_loss"]))
    assert found["test_loss"] < 1 < math.log(8)  # per token; what follows a letter is certain
    assert 0.9 < found["test_accuracy"] <= 1
    events = [json.loads(line) for line in log.read_text().splitlines()]
    evaluations = [each for each in events if each["event"] == "eval"]
    assert evaluations
    assert all(each["perplexity"] == pytest.approx(math.exp(each["loss"])) for each in evaluations)


@pytest.mark.job
@pytest.mark.one_mpi
def test_summary(psgd_command, text):
    result = psgd_command("train", "--dataset", text, *SMALL, "--workers", "1", "--servers", "0", timeout=240)
    assert result.returncode == 0, result.stderr
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines() if line[:1].isalpha())
    assert lines["perplexity"].endswith("per token of the test samples")
    assert {"tokens/s", "samples/s", "accuracy"} <= set(lines)


@pytest.mark.one_mpi
def test_images_have_no_perplexity(psgd_command):
    result = psgd_command("train", "--epochs", "1", "--workers", "1", "--servers", "0", "--json", timeout=240)
    assert not {"test_perplexity", "tokens_per_second"} & set(json.loads(result.stdout.splitlines()[-1]))
