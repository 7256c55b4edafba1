"""EASGD when workers fail: no order leaves the others waiting."""

import time

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import PeerLostError

ORDERS = ["sync", "round-robin", "async", "hogwild"]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("when", ["step", "finish"])
def test_a_worker_that_raises_ends_the_block_everywhere(comm, order, when):
    params = np.zeros(50_000, np.float32)
    began = time.monotonic()
    expected = ZeroDivisionError if comm.rank == 2 else PeerLostError

    def run():
        with psgd.connect(comm, params, strategy="easgd", easgd_order=order, period=2) as ps:
            for t in range(10**9 if when == "step" else 5):
                if ps.worker == 2 and t == 4:
                    time.sleep(0.1 * (when == "finish"))
                    raise ZeroDivisionError
                ps.step(1)

    with pytest.raises(expected):
        run()
    assert time.monotonic() - began < 20
    comm.Barrier()


KILLED = """
import os, signal, time
import numpy as np, psgd
from mpi4py import MPI
from psgd.kernels.errors import PeerLostError
comm = MPI.COMM_WORLD
try:
    with psgd.connect(comm, np.zeros(1000), strategy="easgd", easgd_order="{order}", period=2) as ps:
        for t in range(10**9):
            if comm.rank == 1 and t == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            ps.step(1)
            if {ends} and t == 60:
                break
except PeerLostError as error:
    print(f"rank {{comm.rank}} lost a peer: {{error}}", flush=True)
    open(os.path.join("{folder}", str(comm.rank)), "w").close()
    limit = time.monotonic() + 10
    while len(os.listdir("{folder}")) < 2 and time.monotonic() < limit:
        time.sleep(0.05)  # the first to leave has the others killed
os._exit(3)
"""


@pytest.mark.job
@pytest.mark.parametrize("order", ["sync", "round-robin", "async"])
def test_survivors_learn_of_a_killed_worker(job, order, tmp_path):
    folder = tmp_path / "left"
    folder.mkdir()
    ends = order == "async"  # else they would never wait for anybody
    result = job(3, KILLED.format(order=order, folder=folder, ends=ends), ulfm=True, timeout=25)
    assert result.returncode != 0
    text = result.stdout + result.stderr
    assert "rank 0 lost a peer" in text and "rank 2 lost a peer" in text, text
