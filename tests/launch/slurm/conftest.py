"""Programs of SLURM of our own, for the tests in this folder."""

import shutil

import pytest

TOOLS = (
    "sh",
    "cat",
    "sleep",
    "printf",
    "true",
    "bash",
    "find",
    "sort",
    "tail",
    "mkdir",
    "uname",
    "stat",
    "timeout",
    "grep",
)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes programs of these names that run lines of shell, first on PATH. SLURM's own are not on it."""
    ours, tools = tmp_path / "bin", tmp_path / "tools"
    ours.mkdir()
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name))

    def make(**lines_by_name):
        for name, lines in lines_by_name.items():
            path = ours / name  # never in `tools`: what is written to a link changes the machine's own program
            path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{lines}\n")
            path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{ours}:{tools}")
    return make
