"""Programs of SLURM of our own, for the tests in this folder."""

import pytest


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes programs of these names that run lines of shell, first on PATH. SLURM's own are not on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (
        "sh",
        "cat",
        "sleep",
        "printf",
        "true",
        "rm",
        "bash",
        "find",
        "sort",
        "tail",
        "mkdir",
        "uname",
        "stat",
    ):
        (folder / name).symlink_to(f"/bin/{name}")

    def make(**lines_by_name):
        for name, lines in lines_by_name.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{lines}\n")
            path.chmod(0o755)

    monkeypatch.setenv("PATH", str(folder))
    return make
