"""What the Tab key offers."""

import os
import subprocess
import sys

import pytest


def offered(line, tmp_path):
    words = line.split(" ")
    env = os.environ | {"_PSGD_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "from psgd.launch.cli import main; main()"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    return [tuple(each.split(",", 1)) for each in done.stdout.split()]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("psgd tra", {"train", "trace"}),
        ("psgd bench push", {"pushpull"}),
        ("psgd train --strat", {"--strategy"}),
        ("psgd train --strategy a", {"async", "allreduce", "averaging"}),
        ("psgd train --compress ", {"none", "threshold", "onebit", "topk"}),
    ],
)
def test_commands_options_and_values(line, values, tmp_path):
    assert {value for kind, value in offered(line, tmp_path) if kind == "plain"} == values


@pytest.mark.parametrize("option", ["--dataset", "--log", "--checkpoint-dir", "--config"])
def test_paths_are_completed_by_the_shell(option, tmp_path):
    assert ("file", "ru") in offered(f"psgd train {option} ru", tmp_path)
