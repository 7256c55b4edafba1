"""What `psgd --version` prints: psgd, and what its results depend on. Starts neither MPI nor a GPU."""

import platform
import re
from importlib import metadata
from pathlib import Path

from psgd.kernels.errors import UsageError
from psgd.launch import mpiexec
from psgd.launch.doctor import gpus

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def lines() -> list[str]:
    """One line each for psgd, Python and its libraries, MPI, and CUDA."""
    libraries = (f"{name} {_installed(package)}" for name, package in (("NumPy", "numpy"), ("Numba", "numba")))
    return [
        f"psgd {psgd()}",
        f"Python {platform.python_version()}, {', '.join(libraries)}, mpi4py {_installed('mpi4py')}",
        f"MPI: {_mpi()}",
        f"CUDA: {_cuda()}",
    ]


def psgd() -> str:
    """The version of psgd: of the installed package, or of the checkout that this is."""
    try:
        return metadata.version("psgd")
    except metadata.PackageNotFoundError:
        found = re.search(r'^version = "(.+)"$', _PROJECT.read_text(), re.M) if _PROJECT.is_file() else None
        return f"{found[1]} (checkout)" if found else "unknown"


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _mpi() -> str:
    try:
        library = mpiexec.library()
    except UsageError:
        return "none that mpi4py can load; psgd doctor says why"
    return f"{library.vendor} {library.version} ({library.path or 'path unknown'})"


def _cuda() -> str:
    cupy = gpus.installed()
    if cupy is None:
        return "no, CuPy is not installed"
    cause = gpus.missing()
    return f"CuPy {cupy}" + (f", but {cause}" if cause else "")
