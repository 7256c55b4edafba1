"""Device calls on real ranks that share a GPU, whose memory they map as peers do."""

import re
import sys

import pytest
from harness import HARNESS
from harness.device import cupy

pytestmark = pytest.mark.gpu
RANKS = HARNESS / "peer_ranks.py"
# Also where ranks share a GPU: then each call takes some turns of it. A thread carries out non-blocking calls.
PEERS = {"PSGD_PEERS": "1", "PSGD_PROGRESS": "1"}


@pytest.mark.parametrize(("ranks", "calls"), [(2, 150), (3, 60)])
def test_random_calls_mistakes_streams_and_graphs(job, ranks, calls):
    cupy()
    done = job(ranks, [sys.executable, str(RANKS), str(calls)], env=PEERS, timeout=170)
    assert done.returncode == 0, done.stderr
    assert "kernels flagged pulled staged" in done.stdout


def test_ranks_that_lose_one_in_a_kernel_say_so_within_a_second(job):
    cupy()
    done = job(3, [sys.executable, str(RANKS), "killed"], env=PEERS, ulfm=True, timeout=90)
    seconds = [
        float(text) for text in re.findall(r"lost ([\d.-]+) .*(?:rank 2 ended|MPI reports a lost rank)", done.stdout)
    ]
    assert len(seconds) == 2 and max(seconds) < 1.0, done
    assert done.stdout.count("free") == 2


def test_peers_can_be_switched_off(job):
    cupy()
    code = """
import cupy, numpy as np
from mpi4py import MPI
from psgd import collectives
with collectives.Communicator(MPI.COMM_WORLD) as c:
    x = cupy.ones(200_000, np.float32)
    c.Allreduce(MPI.IN_PLACE, x)
    assert (x == 2).all()
    print(c.last, flush=True)
"""
    done = job(2, code, env={"PSGD_PEERS": "0", "PSGD_CUDA_AWARE": "0"}, timeout=60, check=True)
    assert "peers" not in done.stdout and done.stdout.count("ring") == 2
