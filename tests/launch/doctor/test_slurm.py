"""What the doctor finds of SLURM, with a stand-in for srun."""

import stat

import pytest

from psgd.launch.doctor import slurm


def program(path, text, code=0):
    path.write_text(f"#!/bin/sh\n{text}\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


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
