"""`psgd bench ddp`: wrong options, and what it prints."""

import importlib.util
import json

import pytest

pytestmark = pytest.mark.one_mpi

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
TIMES = ("gloo_seconds", "hook_seconds", "alone_seconds")


WRONG_OPTIONS = [
    ("--sizes", "4XiB"),
    ("--buckets", "0"),
    ("--ranks", "1"),
    ("--repeats", "0"),
    ("surplus",),
    ("--batch", "0"),
    ("--device", "x"),
]


def test_wrong_options(refused):
    refused(*[("bench", "ddp", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


def test_without_pytorch_it_says_so(psgd_command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    result = psgd_command("bench", "ddp", timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 2 and "bench ddp: expected PyTorch, which is not installed" in result.stderr


@needs_torch
@pytest.mark.job
def test_rows(psgd_command):
    result = psgd_command(
        "bench", "ddp", "--sizes", "64KiB,1MiB", "--buckets", "3", "--repeats", "2", "--json", timeout=240
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["nbytes"], row["buckets"]) for row in rows] == [(65536, 3), (1048576, 3), (0, 0)]
    for row in rows:
        assert all(row[key] > 0 for key in TIMES)
        assert (row["psgd_seconds"] is None) == (row["nbytes"] > 0)
