"""MPI's shared memory: what dead ranks left is removed, what a living process has mapped stays."""

import mmap
import os
import subprocess
import sys

import pytest
from harness import HARNESS
from harness.mpi import environment

from psgd.launch import node_memory

MAP = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 8); print(flush=True); input()"
FORBIDDEN = [sys.executable, str(HARNESS / "forbid_reading.py")]


@pytest.fixture
def shm(tmp_path, monkeypatch):
    monkeypatch.setattr(node_memory, "SHM", tmp_path)
    monkeypatch.setattr(node_memory, "_SOON_S", 0.0)
    return tmp_path


def make(folder, *names, age_s=0.0):
    for name in names:
        (folder / name).write_bytes(bytes(8))
        stamp = (folder / name).stat().st_mtime - age_s
        os.utime(folder / name, (stamp, stamp))


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_what_a_run_has_left_is_removed(shm):
    make(shm, "mpich_shm_before_0", "psgd_mine", "sem.other")
    before = node_memory.files()
    assert before == {"mpich_shm_before_0"}
    make(shm, "mpich_shm_after_0", "sm_segment.host.0.1", "mpich_shm_mapped_0")
    make(shm, "mpich_shm_old_0", age_s=61)
    other = [sys.executable, "-c", MAP, str(shm / "mpich_shm_mapped_0")]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        living.stdout.readline()
        node_memory.remove_leftovers(before)
        assert names(shm) == {"mpich_shm_before_0", "psgd_mine", "sem.other", "mpich_shm_mapped_0"}
        living.communicate(b"\n")
    node_memory.remove_leftovers(before)
    assert names(shm) == {"mpich_shm_before_0", "psgd_mine", "sem.other"}


def test_old_ones_stay_where_processes_may_be_hidden(shm, monkeypatch):
    make(shm, "mpich_shm_old_0", age_s=61)
    before = node_memory.files()
    monkeypatch.setattr(node_memory, "sees_all_processes", lambda: False)
    node_memory.remove_leftovers(before)
    assert names(shm) == before
    monkeypatch.setattr(node_memory, "sees_all_processes", lambda: True)
    node_memory.remove_leftovers(before)
    assert names(shm) == set()


def test_others_files_are_not_ours(shm, monkeypatch):
    make(shm, "mpich_shm_new_0")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert node_memory.files() == set()


def test_what_mpich_needs_where_memory_may_not_be_read():
    assert node_memory.settings("Open MPI") == {}
    code = "from psgd.launch import node_memory; print(node_memory.settings('MPICH'))"
    for words, expected in (([], "{}"), (FORBIDDEN, "{'MPIR_CVAR_CH4_CMA_ENABLE': '0'}")):
        done = subprocess.run(
            [*words, sys.executable, "-c", code], env=environment("none"), capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


RANK = """
from mpi4py import MPI
from psgd.launch.output import exit_status
comm, got = MPI.COMM_WORLD, bytearray(1 << 22)
comm.Sendrecv([bytes([comm.rank]) * len(got), MPI.BYTE], 1 - comm.rank, 0, [got, MPI.BYTE], 1 - comm.rank, 0)
assert got == bytes([1 - comm.rank]) * len(got)
if comm.rank == 0:
    exit_status.report(0)
"""


@pytest.mark.job
def test_ranks_that_may_not_read_each_other_send_large_messages(job):
    """MPICH would have one rank copy out of the other."""
    code = f"import sys; from psgd.launch import spawn; sys.exit(spawn.run([sys.executable, '-c', {RANK!r}], 2))"
    result = job(None, [*FORBIDDEN, sys.executable, "-c", code])
    assert result.returncode == 0, result.stderr


def test_one_that_is_alone_leaves_nothing_however_it_ends(shm):
    make(shm, "mpich_shm_mine_0", "sm_segment.host.0.1", "mpich_shm_other_0", "mine")
    kept = []
    for name in ("mpich_shm_mine_0", "sm_segment.host.0.1", "mine"):
        with open(shm / name, "r+b") as file:
            kept.append(mmap.mmap(file.fileno(), 8))
    node_memory.remove_own()
    assert names(shm) == {"mpich_shm_other_0", "mine"}
    for memory in kept:
        memory[:] = b"12345678"  # it is still there
        memory.close()


@pytest.mark.job
@pytest.mark.parametrize("end", ["os._exit(3)", "MPI.COMM_WORLD.Abort(3)"])
def test_a_rank_that_starts_alone_has_removed_its_own(end):
    code = f"""
import os
from psgd.launch import startup
startup.start()
from mpi4py import MPI
print(*{{os.path.basename(line.split()[5]) for line in open("/proc/self/maps") if "/dev/shm/" in line}}, flush=True)
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment("none", {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert not [
        name
        for name in done.stdout.split()
        if name.startswith(("mpich_shm", "sm_segment")) and os.path.exists(f"/dev/shm/{name}")
    ]
