"""Command lines in forks: as separate as processes, and what is not refused fails."""

import pytest


def test_each_line_ends_as_its_own_process(refused):
    wrong, asked, unknown = refused.run(
        ("train", "--lr", "0"), ("train", "--help"), ("bench", "codec", "--codecs", "x")
    )
    assert (wrong.returncode, wrong.stdout) == (2, "") and "--lr" in wrong.stderr
    assert (asked.returncode, asked.stderr) == (0, "") and "psgd train" in asked.stdout
    assert wrong.loaded == asked.loaded == [] and "numpy" in unknown.loaded


def test_what_is_not_refused_or_by_more_than_a_line_fails(refused):
    assert "--lr" in refused(("train", "--lr", "0"))[0]
    with pytest.raises(AssertionError, match="--help"):
        refused(("train", "--lr", "0"), ("train", "--help"))
