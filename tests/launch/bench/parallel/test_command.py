"""`psgd bench parallel`: wrong options, and what it prints."""

import json

import pytest

pytestmark = pytest.mark.one_mpi

WRONG_OPTIONS = [
    ("--hidden", "0"),
    ("--hidden", "many"),
    ("--ranks", "1"),
    ("--repeats", "0"),
    ("--device", "tpu"),
    ("surplus",),
]


def test_wrong_options(refused):
    refused(*[("bench", "parallel", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


@pytest.mark.job
def test_rows(psgd_command):
    sizes = ("--hidden", "7,64", "--width", "13", "--batch", "5", "--repeats", "2")
    result = psgd_command("bench", "parallel", *sizes, "--json", timeout=240)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["model"] for row in rows] == ["13-7-13", "13-64-13"]
    assert all(row["one_seconds"] > 0 and row["tensor_seconds"] > 0 and row["ranks"] == 2 for row in rows)


@pytest.mark.job
def test_a_table(psgd_command):
    result = psgd_command("bench", "parallel", "--hidden", "7", "--width", "13", "--repeats", "1", timeout=240)
    assert result.returncode == 0, result.stderr
    head, row, last = result.stdout.splitlines()
    assert (
        head.split() == ["model", "one", "rank", "tensor", "ratio", "PyTorch", "ratio"] and row.split()[0] == "13-7-13"
    )
    assert last == "median step of the slowest rank; results verified"


def test_without_pytorch_it_says_so(psgd_command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    result = psgd_command("bench", "parallel", "--torch", timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 2 and "bench parallel: --torch: PyTorch is not installed" in result.stderr
