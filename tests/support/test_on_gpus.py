"""`tests/on_gpus` where there is no GPU, and the files that it names."""

import os
import re
import subprocess

from harness import ROOT

SCRIPT = ROOT / "tests" / "on_gpus"


def test_without_a_gpu_it_says_so_and_builds_nothing(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", SCRIPT, tmp_path / "out"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "expected a machine with a GPU, found none: nvidia-smi lists nothing here\n"
    assert not (tmp_path / "out").exists()


def test_the_files_that_it_runs_are_there():
    named = re.findall(r"python3 ([\w/]+\.py)", SCRIPT.read_text())
    assert named
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []
