"""`psgd bench gpt`: wrong options, and what it prints."""

import importlib.util
import json

import pytest

pytestmark = pytest.mark.one_mpi

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
SMALL = ("--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--batch-size", "2", "--repeats", "2")


WRONG_OPTIONS = [("--layers", "0"), ("--ranks", "0"), ("--steps", "x"), ("surplus",)]


def test_wrong_options(refused):
    refused(*[("bench", "gpt", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


def test_without_pytorch_it_says_so(psgd_command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    result = psgd_command("bench", "gpt", timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 2 and "bench gpt: expected PyTorch, which is not installed" in result.stderr


@needs_torch
@pytest.mark.job
def test_losses_are_pytorchs(psgd_command):
    result = psgd_command("bench", "gpt", *SMALL, "--steps", "20", "--json", timeout=240)
    assert result.returncode == 0, result.stderr
    row = json.loads(result.stdout)
    assert (row["ranks"], row["width"], row["steps"]) == (2, 16, 20)
    assert 0 < row["difference"] < 1e-5
    assert all(row[f"{name}_samples_per_second"] > 0 for name in ("torch", "psgd", "psgd_all"))


@needs_torch
@pytest.mark.job
def test_what_cannot_be_ends_in_one_line(psgd_command):
    result = psgd_command("bench", "gpt", *SMALL, "--heads", "3", timeout=240)
    assert result.returncode != 0
    assert "expected a width that is a multiple of its 3 heads, got 16" in result.stderr
