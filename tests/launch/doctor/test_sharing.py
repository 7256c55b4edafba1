import errno
import json
import os

import numpy as np
import pytest

from psgd.collectives.mpi.shared_memory import SharedArray
from psgd.launch.doctor import child, sharing


def test_it_agrees_with_what_processes_can_do(monkeypatch):
    """Against the functions that ranks use, here between this process and a child of it."""
    memory = SharedArray(3, np.int64)
    memory.array[:] = 5, 6, 7
    code = f"""
from psgd.collectives.mpi import shared_memory
array = shared_memory.attach({memory.address()!r}, 3, "i8")
print("yes" if array is not None and array.tolist() == [5, 6, 7] else "no")
"""
    shared, reads = sharing._meet()
    assert shared.split(",")[0] == child.output(code)
    monkeypatch.setenv("PSGD_SHARED", "0")
    assert sharing._meet() == ("no, disabled by PSGD_SHARED=0", reads)


def other(monkeypatch, **changed):
    """Has the second process look for something else than there is."""
    real = child.output
    monkeypatch.setattr(child, "output", lambda code, text: real(code, json.dumps({**json.loads(text), **changed})))
    return sharing._meet()


def test_wrong_memory_is_no(monkeypatch):
    found = other(monkeypatch, memory={"process": os.getpid(), "file": 0, "token": "00" * 16})
    assert found[0] == "no, another process cannot open this one's memory"


def test_an_unreadable_address_is_no(monkeypatch):
    before = sharing._meet()
    found = other(monkeypatch, address=8)
    assert found[0] == before[0]
    assert found[1].startswith("no, process_vm_readv: ")
    if before[1] == "yes":
        assert found[1].endswith(os.strerror(errno.EFAULT))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (json.dumps([None, 0, errno.EPERM]), "forbids it)"),
        (json.dumps([None, 0, errno.ENOSYS]), os.strerror(errno.ENOSYS)),
        ("Killed", "unknown"),
        (None, "unknown"),
    ],
)
def test_reasons(monkeypatch, told, expected):
    monkeypatch.setattr(child, "output", lambda *_: told)
    monkeypatch.setattr(sharing, "yama", lambda: "the container forbids it")
    shared, reads = sharing.checks()[:2]
    assert expected in reads.value
    assert {shared.state, reads.state} == {"warning"}
    assert ("ptrace" in reads.fix) == ("process_vm_readv" in reads.value)


def test_no_memory_files(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "not here")

    reads = sharing._meet()[1]
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert sharing._meet() == ("no, memfd_create: not here", reads)
    monkeypatch.delattr(os, "memfd_create")
    assert sharing._meet()[0].startswith("no, ")


@pytest.mark.parametrize(
    ("text", "expected"), [("1\n", "{} is 1"), ("0\n", "{} is 0, so the container forbids it"), (None, "the container")]
)
def test_yama(tmp_path, text, expected):
    path = tmp_path / "scope"
    if text is not None:
        path.write_text(text)
    assert sharing.yama(str(path)).startswith(expected.format(path))


def test_dev_shm(monkeypatch, tmp_path):
    monkeypatch.setattr(sharing, "SMALL_BYTES", 1)
    assert sharing.dev_shm(str(tmp_path)).state == "ok"
    monkeypatch.setattr(sharing, "SMALL_BYTES", 1 << 60)
    assert "--shm-size" in sharing.dev_shm(str(tmp_path)).fix
    assert sharing.dev_shm(str(tmp_path / "none")).state == "warning"
