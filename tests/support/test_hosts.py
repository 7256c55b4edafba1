"""Hosts made up on one machine: nodes to MPI, joined by links of the given rate only, and gone without a trace."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import hosts as harness_hosts
from harness.processes import holding

COMMAND = [sys.executable, str(Path(harness_hosts.__file__))]

# What ranks print is for one process only: lines of several may mix.
NODES = """
import json, os, pathlib, socket
from mpi4py import MPI
from psgd.collectives.mpi import shared_memory
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
pathlib.Path(f"/dev/shm/rank{comm.rank}").touch()
memory = shared_memory.SharedArray(7, "f8")
addresses = comm.allgather(memory.address())
found = {
    "node": node.allgather(comm.rank),
    "host": socket.gethostname(),
    "mpi": MPI.Get_processor_name(),
    "address": socket.gethostbyname(socket.gethostname()),
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "files": sorted(path.name for path in pathlib.Path("/dev/shm").glob("rank*")),
    "attached": [shared_memory.attach(address, 7, "f8") is not None for address in addresses],
    "thread": os.environ["OMP_NUM_THREADS"],
    "given": os.environ["GIVEN"],
}
all = comm.gather(found)
if comm.rank == 0:
    print(json.dumps(all))
"""

RATES = """
import json, sys, time
import numpy as np
from mpi4py import MPI
comm, rank = MPI.COMM_WORLD, MPI.COMM_WORLD.rank

def meet():
    meeting = comm.Ibarrier()
    while not meeting.Test():
        time.sleep(0.0002)

def rate(pairs, nbytes):  # bit/s of all pairs (from, to) together, the best of three
    best = 0.0
    for turn in range(3):
        send = np.full(nbytes, 10 * turn + rank, np.uint8)
        receive = {source: np.zeros_like(send) for source, to in pairs if to == rank}
        meet()
        start = time.perf_counter()
        requests = [comm.Irecv(into, source) for source, into in receive.items()]
        requests += [comm.Isend(send, to) for source, to in pairs if source == rank]
        MPI.Request.Waitall(requests)
        end = time.perf_counter()  # hosts have one clock; ranks may leave the barrier at different times
        used = bool(requests)
        seconds = comm.allreduce(end if used else 0.0, MPI.MAX) - comm.allreduce(start if used else 1e300, MPI.MIN)
        assert all((into == 10 * turn + source).all() for source, into in receive.items())
        best = max(best, 8 * nbytes * len(pairs) / seconds)
    return best

rates = [rate(pairs, nbytes) for pairs, nbytes in json.loads(sys.argv[1])]
if rank == 0:
    print(json.dumps(rates))
"""

# Whole numbers below 2**24 in float32, all different, so each sum is exact whatever its order.
VERBS = """
import json, sys
import numpy as np
from mpi4py import MPI
from psgd import collectives
from psgd.kernels.errors import ContractError
world = MPI.COMM_WORLD
comm = collectives.Communicator(world)
rank, size = comm.rank, comm.size
assert comm.nodes == 2, comm.nodes
took = set()

def values(n, of):
    return ((np.arange(n, dtype=np.int64) * 7 + 1000003 * of) % 1000003 + of).astype(np.float32)

def guarded(n):
    memory = np.full(n + 16, -77, np.float32)
    return memory[8 : n + 8], memory

def check(what, got, wanted, memory, mine=None, of=None):
    assert np.array_equal(got, wanted), (what, rank, got.size)
    assert (memory[:8] == -77).all() and (memory[got.size + 8 :] == -77).all(), what
    if mine is not None:
        assert np.array_equal(mine, values(mine.size, rank)), what
    if what != "Iall":
        took.add((what, *comm.last))

for n in (0, 1, 4097, 1200007):  # the last is long enough for a second group of segments
    total = sum(values(n, r).astype(np.int64) for r in range(size)).astype(np.float32)
    everything = np.concatenate([values(n, r) for r in range(size)])
    counts = [n // 7, 0, n - n // 7 - n // 3, n // 3]
    starts = [0, *np.cumsum(counts)[:-1].tolist()]
    own = slice(starts[rank], starts[rank] + counts[rank])
    for algorithm in (None, "ring", "recursive_doubling", "rabenseifner", "hierarchical", "native"):
        mine, (got, memory) = values(n, rank), guarded(n)
        comm.Allreduce(mine, got, algorithm=algorithm)
        check("Allreduce", got, total, memory, mine)
        got[:] = mine
        comm.Allreduce(MPI.IN_PLACE, got, collectives.MEAN, algorithm=algorithm)
        check("Allreduce", got, total / 4, memory)
        got[:] = 0
        if algorithm in (None, "ring", "hierarchical"):
            request = comm.Iallreduce(mine, got, algorithm=algorithm)
            request.Wait()
            check("Iall", got, total, memory, mine)
    for algorithm in (None, "ring", "native"):
        mine, (got, memory) = values(n, rank), guarded(counts[rank])
        comm.Reduce_scatter(mine, got, counts, algorithm=algorithm)
        check("Reduce_scatter", got, total[own], memory, mine)
        got, memory = guarded(n // size)
        mine = values(n // size * size, rank)
        comm.Reduce_scatter_block(mine, got, algorithm=algorithm)
        block = slice(rank * got.size, (rank + 1) * got.size)
        check("Reduce_scatter_block", got, total[: mine.size][block], memory, mine)
        mine, (got, memory) = values(n, rank), guarded(n * size)
        comm.Allgather(mine, got, algorithm=algorithm)
        check("Allgather", got, everything, memory, mine)
        got, memory = guarded(n)
        mine = values(counts[rank], rank)
        comm.Allgatherv(mine, [got, counts, starts, MPI.FLOAT], algorithm=algorithm)
        wanted = np.concatenate([values(count, r) for r, count in enumerate(counts)])
        check("Allgatherv", got, wanted, memory, mine)
    for algorithm in (None, "binomial", "chain", "native"):
        for root in (0, 3):
            got, memory = guarded(n)
            got[:] = values(n, root) if rank == root else -1
            comm.Bcast(got, root, algorithm=algorithm)
            check("Bcast", got, values(n, root), memory)
            if algorithm != "chain":
                mine, (got, memory) = values(n, rank), guarded(n)
                got[:] = -5
                comm.Reduce(mine, got, root=root, algorithm=algorithm)
                check("Reduce", got, total if rank == root else np.full_like(total, -5), memory, mine)
    comm.Barrier()
told = []
for n in (1000, 500000):
    for algorithm in ("ring", "hierarchical"):
        inner = collectives.Communicator(world)
        n_mine = n + (rank == 3)
        try:
            inner.Allreduce(np.ones(n_mine, np.float32), np.empty(n_mine, np.float32), algorithm=algorithm)
            told.append("no error")
        except ContractError as error:
            told.append(str(error))
everyone = world.gather((sorted(took), told))
if rank == 0:
    print(json.dumps(everyone))
"""

SPEED = """
import json, time
import numpy as np
from mpi4py import MPI
from psgd import collectives
world = MPI.COMM_WORLD
comm = collectives.Communicator(world)
send = np.full(4 << 20, world.rank + 1, np.float32)  # 16 MiB
got, seconds = np.empty_like(send), []
for turn in range(6):
    world.Barrier()
    start = time.perf_counter()
    comm.Allreduce(send, got)
    seconds.append(world.allreduce(time.perf_counter() - start, MPI.MAX))
assert (got == 3).all() and comm.last == ("ring", "messages"), comm.last
if world.rank == 0:
    print(json.dumps(seconds))
"""


def rates(cluster, tmp_path, ranks_per_host, *patterns):
    script = tmp_path / "rates.py"
    script.write_text(RATES)
    result = cluster.run(ranks_per_host, [sys.executable, str(script), json.dumps(patterns)], timeout=40, check=True)
    return json.loads(result.stdout)


def test_each_host_is_a_node(hosts):
    result = hosts(2).run(2, NODES, timeout=30, env={"GIVEN": "to all"}, check=True)
    found = json.loads(result.stdout)
    assert len(found) == 4
    for rank, one in enumerate(found):
        host = rank // 2
        mine = [2 * host, 2 * host + 1]
        assert one["node"] == mine
        assert one["host"] == one["mpi"] == f"host{host}"
        assert one["address"].endswith(f".{host + 1}")
        assert one["interfaces"] == ["eth0", "lo"]
        assert one["files"] == [f"rank{r}" for r in mine]
        assert one["attached"] == [r in mine for r in range(4)]
        assert (one["thread"], one["given"]) == ("1", "to all")


@pytest.mark.one_mpi
@pytest.mark.alone
def test_links_carry_their_rate_and_no_more(hosts, tmp_path):
    nbytes = 16 << 20
    one_way, in_a_ring, into_one, out_of_one = rates(
        hosts(3, "1gbit"),
        tmp_path,
        1,
        ([(0, 1)], nbytes),
        ([(0, 1), (1, 2), (2, 0)], nbytes),
        ([(1, 0), (2, 0)], nbytes // 2),
        ([(0, 1), (0, 2)], nbytes // 2),
    )
    assert 0.8e9 < one_way < 1.02e9
    assert 1.8e9 < in_a_ring < 3.06e9  # a link that did not send and receive at once would give 1.5e9 at most
    assert 0.7e9 < into_one < 1.02e9
    assert 0.7e9 < out_of_one < 1.02e9


@pytest.mark.one_mpi
@pytest.mark.alone
def test_only_what_leaves_a_host_is_slow(hosts, tmp_path):
    within, between = rates(hosts(2, "200mbit"), tmp_path, 2, ([(0, 1)], 64 << 20), ([(1, 2)], 4 << 20))
    assert 0.8 * 200e6 < between < 1.02 * 200e6
    assert within > 20 * 200e6


@pytest.mark.slow
def test_collectives_across_hosts(hosts):
    result = hosts(2, "10gbit").run(2, VERBS, timeout=60, check=True)
    everyone = json.loads(result.stdout)
    took = {tuple(one) for one in everyone[0][0]}
    messages = ("ring", "recursive_doubling", "rabenseifner", "hierarchical")
    assert {("Allreduce", name, "messages") for name in messages} <= took
    assert {("Bcast", "chain", "messages"), ("Bcast", "binomial", "messages")} <= took
    assert {(verb, "native", "mpi") for verb in ("Allgatherv", "Reduce_scatter_block", "Reduce")} <= took
    told = everyone[0][1]
    assert len(everyone) == len(told) == 4
    assert all(one[1] == told for one in everyone)
    for text, n in zip(told, (1000, 1000, 500000, 500000), strict=True):
        assert str(n) in text
        assert str(n + 1) in text
        assert "rank 3" in text


@pytest.mark.slow
@pytest.mark.alone
def test_ring_fills_the_link(hosts):
    bound = 8 * (16 << 20) / 1e9  # 2 (P - 1)/P S at 1 Gbit/s, for P = 2
    seconds = json.loads(hosts(2, "1gbit").run(1, SPEED, timeout=60, check=True).stdout)
    assert min(seconds) > bound  # else the link is not what limits
    assert min(seconds) < bound / 0.75


def test_exit_codes_and_time_outs(hosts):
    cluster = hosts(2)
    assert cluster.run(1, "import os; os._exit(7)", timeout=30).returncode == 7
    hang = "import time\nfrom mpi4py import MPI\nprint('here', flush=True)\ntime.sleep(60)"
    with pytest.raises(pytest.fail.Exception, match=r"not done after 4 s(.|\n)*here"):
        cluster.run(1, hang, timeout=4)
    assert holding(f"{cluster.folder}/job-") == []
    after = cluster.run(1, "from mpi4py import MPI\nassert MPI.COMM_WORLD.allreduce(11) == 22", timeout=30)
    assert after.returncode == 0, after.stderr


@pytest.mark.one_mpi
def test_two_clusters_at_once(hosts):
    clusters = [hosts(2), hosts(2)]
    assert clusters[0].folder != clusters[1].folder
    code = "from mpi4py import MPI\nc = MPI.COMM_WORLD\nsum = c.reduce({} + c.rank)\nif not c.rank:\n    print(sum)"
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(c.run, 1, code.format(10**k), timeout=40, check=True) for k, c in enumerate(clusters)]
        said = [run.result().stdout.split() for run in runs]
    assert said == [["3"], ["21"]]


def test_command_line(hosts, job):
    hosts(1)  # skips here what makes hosts by itself below
    code = "import sys\nfrom mpi4py import MPI\nc = MPI.COMM_WORLD\nsum = c.allreduce(c.rank)\nif c.rank == 0:\n    "
    code += "print(sum, sys.argv[1:], flush=True)\nc.Barrier()\nsys.exit(3)"
    program = [sys.executable, "-c", code, "--hosts", "-n"]
    result = job(None, [*COMMAND, "--hosts", "2", "--rate", "500mbit", "--ranks-per-host", "2", "--", *program])
    assert "6 ['--hosts', '-n']" in result.stdout.splitlines(), result.stderr
    assert result.returncode == 3


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "0"], "hosts: expected 1 to 200, got 0"),
        (["--rate", "fast"], "rate: expected a number and bit, kbit, mbit or gbit, like 1gbit, got 'fast'"),
    ],
)
def test_wrong_arguments(job, arguments, message):
    result = job(None, [*COMMAND, *arguments, "--", "true"])
    assert (result.returncode, result.stderr) == (2, f"hosts.py: {message}\n")


@pytest.mark.one_mpi
def test_skips_where_hosts_cannot_be_made(hosts, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="no hosts here: needs root"):
        hosts(2)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(harness_hosts, "TOOLS", ("sh", "no-such-tool"))
    with pytest.raises(pytest.skip.Exception, match="no hosts here: not installed: no-such-tool"):
        hosts(2)


@pytest.mark.one_mpi
def test_skips_where_the_system_refuses(hosts, monkeypatch, tmp_path):
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(harness_hosts, "TOOLS", ())
    with pytest.raises(pytest.skip.Exception, match=r"no hosts here: cannot make namespaces: .*not permitted"):
        hosts(2)
