import gc
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from psgd.collectives.mpi.shared_memory import OFFSET, SharedArray, attach, enabled

SIZES = [1, 7, 1023, 100_003]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ranks_see_each_others_writes(comm, n, dtype):
    mine = SharedArray(n, dtype)
    assert mine.array.shape == (n,)
    assert mine.array.dtype == dtype
    assert not mine.array.any()
    addresses = comm.allgather(mine.address())
    theirs = [attach(address, n, dtype) for address in addresses]
    assert all(view is not None for view in theirs)
    comm.Barrier()
    mine.seal()
    mine.array[:] = np.arange(n) + comm.rank
    comm.Barrier()
    for rank, view in enumerate(theirs):
        np.testing.assert_array_equal(view, (np.arange(n) + rank).astype(dtype))
    comm.Barrier()
    theirs[(comm.rank + 1) % comm.size][0] = 100 + comm.rank
    comm.Barrier()
    assert mine.array[0] == 100 + (comm.rank - 1) % comm.size


def test_memory_starts_a_cache_line():
    assert SharedArray(10, np.float32).array.ctypes.data % 64 == OFFSET % 64 == 0


@pytest.mark.parametrize("wrong", ["token", "process", "file", "size", "nothing", "sealed"])
def test_what_is_not_the_owners_memory_is_not_attached(wrong):
    memory = SharedArray(100, np.float32)
    address = dict(memory.address())
    size = 100
    if wrong == "token":
        address["token"] = "00" * 16
    elif wrong == "process":
        address["process"] = 2**22 + 1
    elif wrong == "file":
        address["file"] = 0
    elif wrong == "size":
        size = 99
    elif wrong == "nothing":
        address = {}
    else:
        memory.seal()
    assert attach(address, size, np.float32) is None


def test_memory_outlives_the_file_and_goes_with_its_last_view():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        memory = SharedArray(1000, np.float64)
        view = attach(memory.address(), 1000, np.float64)
        memory.seal()
        memory.array[3] = 5.0
        array = memory.array
        del memory
        assert view[3] == array[3] == 5.0
    del view, array
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_memory_is_an_error_now_and_not_a_signal_later():
    code = (
        "import resource\n"
        "from psgd.collectives.mpi.shared_memory import SharedArray\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n    SharedArray(1 << 20, 'float64')\n"
        "except OSError as error:\n    print('refused')\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout == "refused\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20


def test_switched_off(monkeypatch):
    assert enabled()
    monkeypatch.setenv("PSGD_SHARED", "0")
    assert not enabled()
