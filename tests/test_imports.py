"""The four folders import downward only, by absolute names, and importing them starts nothing."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "kernels": "psgd.kernels",
    "collectives": "psgd.collectives",
    "psgd": "psgd",
    "launch": "psgd.launch",
}
ORDER = ("psgd.kernels", "psgd.collectives", "psgd", "psgd.launch")
THIRD_PARTY = {
    "kernels": {"numpy", "numba", "llvmlite", "cupy", "ml_dtypes"},
    "collectives": {"numpy", "numba", "llvmlite", "cupy", "ml_dtypes", "mpi4py"},
}


def files():
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(tree):
    """Every module that is imported anywhere in a file, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            if node.module == "psgd":
                yield from ((f"psgd.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def layer(module):
    """The height of the folder that a psgd module belongs to."""
    nested = [name for name in ORDER if name != "psgd" and (module == name or module.startswith(f"{name}."))]
    return ORDER.index(nested[0] if nested else "psgd")


def violations(text, folder):
    here = ORDER.index(FOLDERS[folder])
    found = []
    for module, line in imports(ast.parse(text)):
        top = module.split(".")[0]
        if top == "psgd":
            if layer(module) > here:
                found.append((line, f"{module}: upward"))
        elif top in FOLDERS:
            found.append((line, f"{module}: not by its full name"))
        elif folder in THIRD_PARTY and top not in sys.stdlib_module_names | THIRD_PARTY[folder]:
            found.append((line, f"{module}: not for {folder}"))
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward_only(path):
    assert violations(path.read_text(), path.relative_to(ROOT).parts[0]) == []


@pytest.mark.parametrize(
    ("folder", "text", "count"),
    [
        ("kernels", "from psgd.kernels.errors import Error\nimport numba", 0),
        ("kernels", "from psgd.collectives.ring import x", 1),
        ("kernels", "import psgd.config", 1),
        ("kernels", "from mpi4py import MPI", 1),
        ("collectives", "def f():\n    from psgd import config", 1),
        ("collectives", "from psgd.kernels import update\nfrom mpi4py import MPI", 0),
        ("collectives", "import torch", 1),
        ("psgd", "from psgd.launch import cli", 1),
        ("psgd", "import psgd.collectives\nfrom psgd import kernels", 0),
        ("psgd", "import launch.cli", 1),
        ("launch", "from psgd import training\nfrom psgd.kernels import errors", 0),
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


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files()}
    assert {name: n for name, n in lengths.items() if n > 400} == {}
