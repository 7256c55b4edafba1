"""`psgd bench pipeline`: wrong options, and what it prints."""

import json

import pytest

from psgd.launch.bench.pipeline.command import KNOWN

pytestmark = pytest.mark.one_mpi

SIZES = ("--layers", "4", "--width", "13", "--batch", "6", "--microbatches", "3", "--repeats", "2")


WRONG_OPTIONS = [
    (("--schedules", "gpipe,2f2b"), "--schedules: expected some of gpipe, 1f1b"),
    (("--layers", "6"), "--layers: expected a multiple of 4"),
    (("--microbatches", "9", "--batch", "8"), "--microbatches: expected at most the 8 samples"),
    (("--ranks", "1"), "--ranks"),
]


def test_wrong_options(refused):
    said = refused(*[("bench", "pipeline", *words) for words, _ in WRONG_OPTIONS], imports=["psgd.launch.bench"])
    for line, (words, message) in zip(said, WRONG_OPTIONS, strict=True):
        assert message in line, words


@pytest.mark.job
def test_rows(psgd_command):
    result = psgd_command("bench", "pipeline", *SIZES, "--json", timeout=240)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["schedule"] for row in rows] == list(KNOWN)
    for row in rows:
        assert row["one_seconds"] > 0 and row["pipeline_seconds"] > 0 and 0 < row["bubble"] < 1
    by_name = {row["schedule"]: row["expected_bubble"] for row in rows}
    assert by_name["gpipe"] == by_name["1f1b"] == pytest.approx(1 / 4)
    assert by_name["inference"] == pytest.approx(1 / 13)
    assert by_name["zero-bubble"] < by_name["1f1b"] and by_name["pipedream"] == 0
    for row in rows:
        assert ("shares" in row) == row["schedule"].startswith("pipedream")
        if "shares" in row:
            assert row["least_bubble"] <= row["bubble"] and len(row["shares"]) == 2
            for each in row["shares"]:
                assert sum(each.values()) == pytest.approx(1) and min(each.values()) > 0


@pytest.mark.job
def test_a_table(psgd_command):
    result = psgd_command("bench", "pipeline", *SIZES, "--schedules", "gpipe,pipedream", timeout=240)
    assert result.returncode == 0, result.stderr
    head, row, other, shares, last = result.stdout.splitlines()
    assert other.split()[0] == "pipedream" and shares.startswith("pipedream: rank 0 ") and "least bubble" in shares
    assert head.split() == ["schedule", "one", "rank", "pipeline", "ratio", "bubble", "expected"]
    assert row.split()[0] == "gpipe" and row.split()[-2:] == ["25.0", "%"]
    assert last == "median step; results verified"
