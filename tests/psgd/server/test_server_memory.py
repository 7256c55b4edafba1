"""What a server needs beyond its process: 2.5 times its shard, the optimizer's state, 4 MiB for each worker."""

import pytest

CODE = """
import os
import numpy as np
from mpi4py import MPI
import psgd

comm = MPI.COMM_WORLD
clip, rule, servers = float(os.environ["CLIP"]), os.environ["RULE"], int(os.environ["SERVERS"])
n = 8 << 20  # 32 MiB of float32


# Gradients that the server reads in its workers' memory are theirs: then only its own, private pages count.
LINE = "VmHWM" if os.environ["PSGD_SHARED"] == "0" else "RssAnon"


def peak_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(LINE)) / 1024


tiny = np.zeros(64, np.float32)
with psgd.connect(comm, tiny, strategy="async", servers=servers, clip_norm=clip, rule=rule) as ps:
    ps.step()  # compiles, and lets MPI take its own buffers
params = np.empty(n, np.float32)
if comm.rank >= servers:
    params[:] = 1.0
before = peak_mib()
with psgd.connect(comm, params, strategy="async", servers=servers, clip_norm=clip, rule=rule) as ps:
    for _ in range(5):
        ps.grads[:] = 1.0
        ps.step()
if comm.rank == 0:
    print("grown", peak_mib() - before)
"""


@pytest.mark.job
@pytest.mark.parametrize("shared", ["0", "1"])
@pytest.mark.parametrize(("clip", "rule", "servers"), [(0, "sgd", 1), (1, "sgd", 1), (1, "adam", 1), (0, "sgd", 2)])
def test_memory_of_a_server(job, clip, rule, servers, shared):
    options = {"CLIP": str(clip), "RULE": rule, "SERVERS": str(servers), "PSGD_SHARED": shared}
    result = job(servers + 2, CODE, timeout=60, env=options, check=True)
    grown = float(result.stdout.split("grown")[1].split()[0])
    shard = 32 / servers
    state = {"sgd": 0, "adam": 2}[rule] * shard
    assert grown >= shard * 0.9, "the measurement sees nothing"
    assert grown <= 2.5 * shard + state + 4 * 2
