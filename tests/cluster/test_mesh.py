"""A mesh over two nodes whose ranks SLURM deals out in turn: what is exchanged most stays inside a node."""

import json
import re
import sys

PROGRAM = """
import json
import numpy as np
from mpi4py import MPI
from psgd import collectives
from psgd.parallel.mesh import ProcessMesh

COUNT = 1 << 20


def sent():
    lines = open("/proc/net/dev").read().splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("eth0:"))


def moved(comm):
    # Bytes that left this node while each rank added up 4 MiB with its neighbours along an axis.
    with collectives.Communicator(comm) as axis:
        x = np.full(COUNT, 1 + comm.rank, np.float32)
        MPI.COMM_WORLD.Barrier()
        before = sent()
        MPI.COMM_WORLD.Barrier()
        axis.Allreduce(MPI.IN_PLACE, x)
        assert x[0] == x[-1] == 3
        MPI.COMM_WORLD.Barrier()
        return sent() - before


with ProcessMesh(MPI.COMM_WORLD, pipe=2, tensor=2) as mesh:
    mine = {"node": MPI.Get_processor_name(), "place": mesh.coordinates, "mesh": mesh.describe()}
    mine |= {axis: moved(getattr(mesh, axis)) for axis in ("tensor", "pipe")}
    found = mesh.world.gather(mine)
    if found:
        print(json.dumps(found))
"""


def test_tensor_ranks_exchange_inside_a_node_and_stages_between(login):
    (login.folder / "mesh.py").write_text(PROGRAM)
    words = ["srun", f"--mpi={login.mpi}", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--distribution=cyclic"]
    done = login.cluster.run(*words, sys.executable, str(login.folder / "mesh.py"), cwd=login.folder, timeout_s=120)
    ranks = json.loads(done.stdout.splitlines()[-1])
    assert [each["node"] for each in ranks] == ["host0", "host1"] * 2
    assert [each["place"]["pipe"] for each in ranks] == [0, 1] * 2
    assert [each["place"]["tensor"] for each in ranks] == [0, 0, 1, 1]
    assert {each["mesh"] for each in ranks} == {"mesh: tensor 2 (inside a node), pipe 2 (between nodes)"}
    for each in ranks:
        assert each["pipe"] > 4 << 20 and each["tensor"] < each["pipe"] / 20, ranks
    train = [str(login.venv / "bin" / "psgd"), "train", "--mesh", "pipe=2,tensor=2", "--epochs", "2", "--verbose"]
    done = login.cluster.run(*words, *train, cwd=login.folder, timeout_s=180)
    assert "mesh: tensor 2 (inside a node), pipe 2 (between nodes)" in done.stderr
    for rank in range(4):
        row = rf"^ *{rank} +host{rank % 2} +worker 0 pipe={rank % 2},tensor={rank // 2}"
        assert re.search(row, done.stderr, re.MULTILINE), done.stderr
