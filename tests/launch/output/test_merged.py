"""Stdout and stderr in one file keep their order, whatever way mpiexec passes them on."""

import os
import subprocess
import sys

import pytest

CODE = "from psgd.launch.output import merged; import os; print(merged.find()); merged.follow(); os.write(2, b'told')"


@pytest.mark.parametrize(("merged", "found"), [(True, "True"), (False, "False")])
def test_one_place_is_seen(tmp_path, merged, found):
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        env = {name: value for name, value in os.environ.items() if name != "PSGD_MERGED"}
        command = [sys.executable, "-u", "-c", CODE]
        subprocess.run(command, stdout=out, stderr=out if merged else err, check=True, env=env, timeout=60)
    assert (tmp_path / "out").read_text() == f"{found}\n" + "told" * merged
    assert (tmp_path / "err").read_text() == "told" * (not merged)


def test_a_rank_follows_what_its_launcher_found(tmp_path):
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        command = [sys.executable, "-u", "-c", CODE]
        subprocess.run(command, stdout=out, stderr=err, check=True, env={**os.environ, "PSGD_MERGED": "1"}, timeout=60)
    assert (tmp_path / "out").read_text() == "False\ntold" and (tmp_path / "err").read_text() == ""


def test_closed_ones_are_none():
    code = "import os; os.close(1); os.close(2); from psgd.launch.output import merged; os._exit(merged.find())"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
