"""What the doctor finds of cores, threads and the tuning table, with made-up files."""

import json
import os

import pytest

from psgd.launch.doctor import machine
from psgd.launch.doctor.check import Check


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
    assert machine.tuning() == Check("tuning", f"no file {table}: built-in limits")
    entry = {"collective": "Allreduce", "ranks": 2, "nodes": 1, "limits": [[None, "native"]]}
    table.write_text(json.dumps({"format": 1, "entries": [entry]}))
    assert machine.tuning() == Check("tuning", f"{table} (1 entry)")
    table.write_text("no table")
    assert machine.tuning().value.startswith(f"not valid: {table}: ")
