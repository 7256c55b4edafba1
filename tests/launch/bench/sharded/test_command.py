"""`psgd bench sharded`: wrong options, and what it prints."""

import json

import pytest

SMALL = ("--layers", "2", "--width", "40", "--batch", "4", "--repeats", "2")


@pytest.mark.parametrize("arguments", [("--layers", "0"), ("--ranks", "1"), ("--device", "tpu"), ("surplus",)])
def test_wrong_options(psgd_command, arguments):
    result = psgd_command("bench", "sharded", *arguments, timeout=60)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("psgd: error: ")


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
