import sys
import tempfile

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch import options, spawn, train


def test_a_script_named_psgd_is_run_again(tmp_path, monkeypatch):
    script = tmp_path / "psgd"
    script.write_text("")
    monkeypatch.chdir(tmp_path)
    assert spawn.again(["psgd", "train", "--lr", "1"]) == [sys.executable, str(script), "train", "--lr", "1"]


@pytest.mark.parametrize("name", ["launch/__main__.py", "psgd", "-c", "/usr/bin/pytest"])
def test_anything_else_runs_the_module(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert spawn.again([name, "train"]) == [sys.executable, "-m", "psgd.launch", "train"]


def test_split():
    assert spawn.split("--mca pml ob1 --host 'a b'") == ["--mca", "pml", "ob1", "--host", "a b"]
    with pytest.raises(UsageError, match="--mpiexec-args"):
        spawn.split("'a")


@pytest.mark.parametrize(
    ("mpiexec", "reported", "code"), [(0, 0, 0), (0, 2, 2), (0, None, 1), (3, None, 3), (3, 0, 3), (3, 2, 2)]
)
def test_the_exit_code_of_a_run(mpiexec, reported, code, capsys):
    assert spawn._judge(mpiexec, reported) == code
    said = capsys.readouterr().err
    assert said == (
        "psgd: error: mpiexec returned 0 but the run did not complete\n" if (mpiexec, reported) == (0, None) else ""
    )


def test_without_room_for_the_report_nothing_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="TMPDIR: expected a folder that can be written"):
        spawn.run(["nothing"], 2)


@pytest.mark.parametrize(("device", "bound"), [("cpu", True), ("cuda", False)])
def test_ranks_with_gpus_are_not_bound_to_a_core(device, bound, monkeypatch):
    """Threads of CUDA and of MPI would share that core with them."""
    seen = []
    monkeypatch.setattr(spawn, "run", lambda *arguments, **named: seen.append((arguments, named)) or 0)
    monkeypatch.setattr(options, "check_here", lambda config: None)
    assert CliRunner().invoke(train.train, ["--device", device], standalone_mode=False).return_value == 0
    (arguments, named) = seen[0]
    assert (arguments[5] if len(arguments) > 5 else named["bind"]) is bound
