"""When workers fail that exchange with each other, by elastic averaging or decentralized: nobody is left waiting."""

import time

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import PeerLostError

EASGD = {order: {"easgd_order": order, "period": 2} for order in ("sync", "round-robin", "async", "hogwild")}
PEERS = {peers: {"peers": peers} for peers in ("ring", "pairs")}
RUNS = [
    *(pytest.param({"strategy": "easgd"} | options, id=f"easgd-{name}") for name, options in EASGD.items()),
    *(pytest.param({"strategy": "decentralized"} | options, id=name) for name, options in PEERS.items()),
]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("options", RUNS)
@pytest.mark.parametrize("when", ["step", "finish"])
@pytest.mark.both_mpis_whole
def test_a_worker_that_raises_ends_the_block_everywhere(comm, options, when):
    params, began = np.zeros(50_000, np.float32), time.monotonic()

    def run():
        with psgd.connect(comm, params, **options) as ps:
            for t in range(10**9 if when == "step" else 5):
                if ps.worker == 2 and t == 4:
                    time.sleep(0.1 * (when == "finish"))
                    raise ZeroDivisionError
                ps.step(1)

    with pytest.raises(ZeroDivisionError if comm.rank == 2 else PeerLostError):
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
    with psgd.connect(comm, np.zeros(1000), **{options}) as ps:
        for t in range({steps}):
            if comm.rank == 1 and t == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            ps.step(1)
except PeerLostError as error:
    print(f"rank {{comm.rank}} lost a peer: {{error}}", flush=True)
    open(os.path.join("{folder}", str(comm.rank)), "w").close()
    limit = time.monotonic() + 10
    while len(os.listdir("{folder}")) < 2 and time.monotonic() < limit:
        time.sleep(0.05)  # the first to leave has the others killed
os._exit(3)
"""


@pytest.mark.job
@pytest.mark.parametrize(
    "options",
    [
        *(pytest.param({"strategy": "easgd"} | EASGD[name], id=name) for name in ("sync", "round-robin", "async")),
        pytest.param({"strategy": "decentralized", "window": 4} | PEERS["ring"], id="ring"),
    ],
)
def test_survivors_learn_of_a_killed_worker(job, options, tmp_path):
    folder = tmp_path / "left"
    folder.mkdir()
    steps = 61 if "async" in options.values() else 10**9  # they never wait for anybody before the end
    result = job(3, KILLED.format(options=options, folder=folder, steps=steps), ulfm=True, timeout=25)
    assert result.returncode != 0
    text = result.stdout + result.stderr
    assert "rank 0 lost a peer" in text and "rank 2 lost a peer" in text, text
