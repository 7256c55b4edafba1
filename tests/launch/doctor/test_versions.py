import re

from psgd.launch import mpiexec
from psgd.launch.doctor import gpus, versions


def test_each_line_names_what_it_is_of():
    first, second, third, fourth = versions.lines()
    library = mpiexec.library()
    assert re.fullmatch(r"psgd \d+\.\d+\.\d+( \(checkout\))?", first)
    assert re.fullmatch(r"Python 3[\d.]+, NumPy [\d.]+, Numba [\d.]+, mpi4py [\d.]+", second)
    assert third == f"MPI: {library.vendor} {library.version} ({library.path})"
    cupy = gpus.installed()
    assert fourth == "CUDA: no, CuPy is not installed" if cupy is None else fourth.startswith(f"CUDA: CuPy {cupy}")


def test_what_is_missing_is_said(monkeypatch):
    def none():
        raise versions.UsageError("MPI: none")

    monkeypatch.setattr(versions.mpiexec, "library", none)
    monkeypatch.setattr(versions.gpus, "installed", lambda: "13.6")
    monkeypatch.setattr(versions.gpus, "missing", lambda: "no NVIDIA driver here")
    *_, mpi, cuda = versions.lines()
    assert mpi == "MPI: none that mpi4py can load; psgd doctor says why"
    assert cuda == "CUDA: CuPy 13.6, but no NVIDIA driver here"
    monkeypatch.setattr(versions.metadata, "version", lambda name: versions.metadata.distribution("no such thing"))
    assert versions._installed("numpy") == "(not installed)"
    assert versions.psgd().endswith("(checkout)") or versions.psgd() == "unknown"
