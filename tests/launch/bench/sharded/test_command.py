"""`psgd bench sharded`: wrong options, and what it prints."""

import json

import pytest

pytestmark = pytest.mark.one_mpi

SMALL = ("--layers", "2", "--width", "40", "--batch", "4", "--repeats", "2")


WRONG_OPTIONS = [("--layers", "0"), ("--ranks", "1"), ("--device", "tpu"), ("surplus",)]


def test_wrong_options(refused):
    refused(*[("bench", "sharded", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


@pytest.mark.job
def test_all_stages_are_shown(psgd_command):
    result = psgd_command("bench", "sharded", *SMALL, "--json", timeout=240)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["stage"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["ratio"] == 1
    vector = 4 * rows[0]["parameters"]
    assert [row["bytes_moved"] for row in rows] == [vector, vector, vector, 1.5 * vector]
    assert rows[0]["bytes_kept"] == 4 * vector
    assert rows[1]["bytes_kept"] == 3 * vector
