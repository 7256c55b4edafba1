"""Imports are absolute, kernels and collectives need few packages, and importing psgd starts nothing."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernels", "collectives", "psgd", "launch")
THIRD_PARTY = {
    "kernels": {"numpy", "numba", "llvmlite", "cupy", "ml_dtypes"},
    "collectives": {"numpy", "numba", "llvmlite", "cupy", "ml_dtypes", "mpi4py"},
}


def files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def imports(tree):
    """Every module that is imported anywhere in a file, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{'.' * node.level}{node.module or ''}", node.lineno


def violations(text, folder):
    found = []
    for module, line in imports(ast.parse(text)):
        top = module.split(".")[0]
        if not top:
            found.append((line, f"{module}: relative import"))
        elif top in FOLDERS and top != "psgd":
            found.append((line, f"{module}: not by its full name"))
        elif folder in THIRD_PARTY and top not in sys.stdlib_module_names | THIRD_PARTY[folder] | {"psgd"}:
            found.append((line, f"{module}: not for {folder}"))
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_are_absolute_and_few(folder):
    paths = files(folder)
    assert len(paths) > 50
    found = {str(path.relative_to(ROOT)): violations(path.read_text(), folder) for path in paths}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("folder", "text", "count"),
    [
        ("kernels", "from psgd.kernels.errors import Error\nimport numba", 0),
        ("kernels", "from mpi4py import MPI", 1),
        ("collectives", "from psgd.kernels import update\nfrom mpi4py import MPI", 0),
        ("collectives", "import torch", 1),
        ("psgd", "import psgd.collectives\nfrom psgd import kernels", 0),
        ("psgd", "import launch.cli", 1),
        ("launch", "from psgd import training\nfrom psgd.kernels import errors", 0),
        ("launch", "def f():\n    from kernels import errors", 1),
        ("psgd", "from . import config\nfrom .config import configure", 2),
    ],
)
def test_the_rule_can_fail(folder, text, count):
    assert len(violations(text, folder)) == count


@pytest.mark.parametrize("module", ["psgd", "psgd.kernels", "psgd.collectives", "psgd.launch", "psgd.launch.cli"])
def test_importing_starts_neither_mpi_nor_cuda(module, tmp_path):
    probe = f"import sys, {module}; print(*{{'mpi4py.MPI', 'numba', 'cupy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", ["rules.Rule", "schedules.cosine", "metrics.RunMetrics"])
def test_modules_of_the_api_need_no_import_of_their_own(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"import psgd; psgd.{name}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
