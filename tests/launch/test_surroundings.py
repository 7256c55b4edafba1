"""What is missing around a process: put right, or said in one line."""

import os
import subprocess
import sys

import pytest

from psgd.kernels.errors import UsageError
from psgd.launch import surroundings


def test_a_home_is_given_where_there_is_none(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    surroundings.prepare()
    assert os.path.isabs(os.environ["HOME"])


def test_a_folder_for_temporary_files_that_is_not_there_is_replaced(tmp_path):
    code = "from psgd.launch import surroundings; surroundings.prepare(); import os; print(os.environ['TMPDIR'])"
    environment = {**os.environ, "TMPDIR": str(tmp_path / "none")}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert os.path.isdir(done.stdout.strip()), done


def test_a_working_folder_that_was_removed_is_one_line(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the working folder: No such file or directory; was it removed"):
        surroundings.check()
