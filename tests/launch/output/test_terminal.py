"""The launcher's terminal, found by name; a pseudo-terminal stands for it."""

import os
import pty
import socket
import sys

import pytest

from psgd.launch.output import merged, terminal


@pytest.fixture
def pseudo():
    leader, follower = pty.openpty()
    yield os.ttyname(follower)
    os.close(leader)
    os.close(follower)


def test_it_is_opened_by_name_on_this_host_only(pseudo, monkeypatch):
    monkeypatch.setenv(terminal.VARIABLE, f"{socket.gethostname()}:{pseudo}")
    with terminal.find() as found:
        assert found.isatty() and os.ttyname(found.fileno()) == pseudo
    monkeypatch.setenv(terminal.VARIABLE, f"another-host:{pseudo}")
    assert terminal.find() is (sys.stderr if sys.stderr.isatty() else None)


def test_what_is_no_terminal_is_not_one(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    with file.open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        for path in (file, tmp_path / "none"):
            monkeypatch.setenv(terminal.VARIABLE, f"{socket.gethostname()}:{path}")
            assert terminal.find() is None
        assert terminal.name() is None


def test_its_name(pseudo, monkeypatch):
    with open(pseudo, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert terminal.name() == f"{socket.gethostname()}:{pseudo}"


def test_a_stderr_that_is_merged_with_stdout_is_not_one(pseudo, monkeypatch):
    """Open MPI gives a rank a pseudo-terminal of its own for stdout."""
    monkeypatch.delenv(terminal.VARIABLE, raising=False)
    with open(pseudo, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert terminal.find() is stream
        monkeypatch.setenv(merged.VARIABLE, "1")
        assert terminal.find() is None
