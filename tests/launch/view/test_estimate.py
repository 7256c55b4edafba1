"""The command, as a user calls it."""

import json

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch.view.estimate import estimate, memory_of


def run(*arguments):
    done = CliRunner().invoke(estimate, arguments, standalone_mode=False, catch_exceptions=False)
    return done.return_value, done.output


def test_the_table_has_each_kind_of_rank():
    code, said = run("--workers", "3", "--optimizer", "adam", "--memory", "1GiB")
    assert not code and "worker, 3 of them, on cpu" in said and "server, 1 of them" in said
    assert "optimizer state" in said.split("server")[1] and said.endswith("fits: each rank has 1.07 GB\n")


def test_json_and_the_exit_code():
    code, said = run("--strategy", "allreduce", "--json", "--memory", "1GB")
    found = json.loads(said)
    assert code == 0 and found["fits"] and found["ranks"][0]["total"] == sum(found["ranks"][0]["bytes"].values())
    code, said = run("--strategy", "allreduce", "--json", "--memory", "1MB")
    assert code == 1 and not json.loads(said)["fits"]
    code, said = run("--batch-size", "4096", "--hidden", "512", "--memory", "10MB")
    assert code == 1 and "the batch does not fit" in said


def test_ranks_that_stand_by_are_counted():
    words = ("--grow", "0.5:2,1:4", "--checkpoint-dir", "c", "--spares", "3", "--json")
    found = {each["role"]: each["ranks"] for each in json.loads(run(*words)[1])["ranks"]}
    assert found == {"worker": 4, "server": 1, "spare, in the place of another": 3}
    code, said = run(*words[:-1])
    assert code == 0 and "a spare that sleeps needs no more than that" in said


def test_text_is_evaluated_in_few_samples():
    text = ("--dataset", "genesis", "--model", "gpt", "--batch-size", "8", "--strategy", "allreduce", "--json")
    few, many = (
        json.loads(run(*text, "--context", each)[1])["ranks"][0]["bytes"]["evaluation"] for each in ("62", "31")
    )
    assert many == pytest.approx(few, rel=0.2)  # 500 // 62 samples, and twice as many of half the length


def test_the_lecture():
    code, said = run("--as-in-the-lecture")
    assert code == 0 and "87 GB" in said and "2800 GB" in said


@pytest.mark.parametrize(("given", "number"), [("80GB", 80 * 10**9), ("16GiB", 16 * 2**30), ("1.5 kb", 1500), ("7", 7)])
def test_bytes_are_read(given, number):
    assert memory_of(given) == number


@pytest.mark.parametrize("given", ["", "many", "-1GB", "0", "3XB"])
def test_wrong_bytes_are_refused(given):
    with pytest.raises(UsageError, match="--memory: expected bytes above 0"):
        memory_of(given)
