"""Jobs whose ranks die, wait too long, or run under another thread level."""

import os

import pytest
from harness import mpi

START = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
from psgd import collectives
from psgd.kernels.errors import ContractError, Error, PeerLostError
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
c = collectives.Communicator(world)
x, y = np.full({n}, rank + 1.0), np.zeros({n})
"""


def code(body, n, **values):
    """A job's text with these values in place of their names in braces."""
    text = body if START in body else START + body
    for name, value in {"n": n, **values}.items():
        text = text.replace("{" + name + "}", str(value))
    return text


WAYS = pytest.mark.parametrize("shared", ["1", "0"])

KILLED = """
for i in range(10**9):
    if rank == 1 and i == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    c.Allreduce(x, y)
"""

SURVIVES = """
start = None
try:
    for i in range(10**9):
        start = time.monotonic()
        if rank == 1 and i == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        c.Allreduce(x, y)
except PeerLostError as error:
    seconds = time.monotonic() - start
    print(f"rank {rank} lost a peer after {seconds:.1f} s: {error}", flush=True)
    try:
        c.Allreduce(x, y)
    except Error as error:
        print(f"rank {rank} then: {type(error).__name__}: {error}", flush=True)
    print("early" if seconds < 5 else "late", flush=True)
    open(os.path.join("{folder}", str(rank)), "w").close()
    limit = time.monotonic() + 10
    while len(os.listdir("{folder}")) < 2 and time.monotonic() < limit:
        time.sleep(0.05)  # the first to leave has the others killed
os._exit(3)
"""


@WAYS
def test_a_killed_rank_ends_a_plain_job(job, shared):
    result = job(3, code(KILLED, n=1000), env={"PSGD_SHARED": shared}, timeout=20)
    assert result.returncode != 0
    assert result.seconds < 12


@WAYS
@pytest.mark.parametrize("n", [1000, 200_000])
def test_survivors_learn_of_a_killed_rank(job, shared, n, tmp_path):
    folder = tmp_path / "survivors"
    folder.mkdir()
    result = job(3, code(SURVIVES, n=n, folder=folder), env={"PSGD_SHARED": shared}, ulfm=True, timeout=25)
    assert result.returncode != 0
    for rank in (0, 2):
        assert f"rank {rank} lost a peer" in result.stdout, result
        assert f"rank {rank} then: ContractError: this communicator cannot be used any more" in result.stdout, result
    assert result.stdout.count("early") == 2


STALLS = """
c.Allreduce(x, y)
world.Barrier()
if rank == size - 1:
    time.sleep({sleep})
c.Allreduce(x, y)
print(y[0], flush=True)
c.free()
"""


SEVERAL = """
import os, sys, time
import numpy as np
from mpi4py import MPI
from psgd import collectives
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
for shared, n, check in (("1", 10, "0"), ("1", 300_000, "0"), ("0", 10, "0"), ("1", 10, "1"), ("0", 10, "1")):
    os.environ.update(PSGD_SHARED=shared, PSGD_CHECK=check, PSGD_STALL="0.5")
    c = collectives.Communicator(world)
    x, y = np.full(n, rank + 1.0), np.zeros(n)
    c.Allreduce(x, y)
    world.Barrier()
    if rank == size - 1:
        time.sleep(1.5 if shared == "1" and check == "0" else 3.5)
    c.Allreduce(x, y)
    assert y[0] == 6.0
    c.free()
    sys.stderr.flush()
    world.Barrier()
    time.sleep(0.2)  # for what ranks wrote to be passed on, before the next case begins
print("fine", flush=True)
"""


def test_the_missing_rank_is_named_once(job):
    result = job(3, SEVERAL, timeout=60, check=True)
    assert result.stdout.count("fine") == 3
    warnings = [line for line in result.stderr.splitlines() if "psgd: warning" in line]
    assert len(warnings) == 5, result.stderr
    for n, line in zip((10, 300_000, 10, 10, 10), warnings, strict=True):
        assert f"Allreduce(float64, {n} elements, SUM)" in line and "rank 2 has not arrived" in line


@pytest.mark.parametrize("shared", ["1", "0"])
def test_no_warning_without_a_stall(job, shared):
    result = job(2, code(STALLS, n=10, sleep=0.8), env={"PSGD_SHARED": shared, "PSGD_STALL": "2"}, check=True)
    assert "psgd" not in result.stderr


@WAYS
def test_a_timeout_ends_the_job(job, shared):
    result = job(2, code(STALLS, n=10, sleep=60), env={"PSGD_SHARED": shared, "PSGD_TIMEOUT": "2"}, timeout=20)
    assert result.returncode != 0
    assert 1.5 < result.seconds < 12
    assert (
        "PSGD_TIMEOUT=2" in result.stderr
        and "rank 0" in result.stderr
        and "Allreduce(float64, 10 elements" in result.stderr
    )


LEVELS = """
import mpi4py
mpi4py.rc.thread_level = "single"
import os, threading
import numpy as np
from mpi4py import MPI
from psgd import collectives
assert MPI.Query_thread() == MPI.THREAD_SINGLE, MPI.Query_thread()
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
for shared in "10":
    for progress in (None, "1"):
        os.environ["PSGD_SHARED"] = shared
        if progress:
            os.environ["PSGD_PROGRESS"] = progress
        else:
            os.environ.pop("PSGD_PROGRESS", None)
        c = collectives.Communicator(world)
        for n in (3, 3000, 100_003):
            a, b = np.arange(float(n)) * (rank + 1), np.zeros(n)
            request = c.Iallreduce(a, b)
            c.Allreduce(a, z := np.zeros(n))
            request.Wait()
            wanted = np.arange(float(n)) * (size * (size + 1) / 2)
            assert np.array_equal(b, wanted) and np.array_equal(z, wanted), (shared, progress, n)
        assert not [t for t in threading.enumerate() if t.name.startswith("psgd")], (shared, progress)
        c.free()
print("fine", flush=True)
"""


def test_one_thread_is_enough(job):
    assert job(2, LEVELS, check=True).stdout.count("fine") == 2


THREADED = """
import threading
if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
    print("no threads", flush=True)
    sys.exit()
lengths = [0, 1, 1000, 9000, 100_003, 7]
mine = [np.arange(float(n)) * (rank + 1) + k for k, n in enumerate(lengths)]
results = [np.full(n, -1.0) for n in lengths]
factor = size * (size + 1) / 2
for turn in range(5):
    requests = [c.Iallreduce(a, b) for a, b in zip(mine, results)]
    blocks = np.zeros(4 * size)
    requests.append(c.Iallgather(np.full(4, float(rank)), blocks))
    c.Allreduce(x, y)  # in between, on the other lane
    assert y[0] == factor
    for i in np.random.default_rng(turn + rank).permutation(len(requests)):
        requests[i].Wait()
    for k, (n, b) in enumerate(zip(lengths, results)):
        assert np.array_equal(b, np.arange(float(n)) * factor + k * size), (turn, n)
    assert np.array_equal(blocks, np.repeat(np.arange(size), 4))
# It goes on while this thread computes and asks nothing.
request = c.Iallreduce(mine[4], results[4])
limit = time.monotonic() + 5
while not request.finished.is_set() and time.monotonic() < limit:
    sum(range(1000))
assert request.finished.is_set(), "no progress"
assert request.Test()
assert [t.name for t in threading.enumerate() if t.name.startswith("psgd")], "no thread"
bad = c.Iallreduce(np.ones(5 + (rank == 1)), np.ones(5 + (rank == 1)))
wrong = None
try:
    bad.Wait()
except ContractError as error:
    wrong = str(error)
for _ in range(2):
    try:
        bad.Test()
    except ContractError as error:
        assert str(error) == wrong
assert wrong and "rank 1" in wrong and "6 elements" in wrong, wrong
if "{shared}" == "1":
    c.Iallreduce(mine[2], results[2]).Wait()
    assert np.array_equal(results[2], np.arange(1000.0) * factor + 2 * size)
    c.free()
print("fine", flush=True)
"""


@WAYS
def test_a_thread_carries_requests_forward(job, shared):
    result = job(2, code(THREADED, n=5, shared=shared), env={"PSGD_SHARED": shared, "PSGD_PROGRESS": "1"}, check=True)
    if "no threads" in result.stdout:
        pytest.skip("this MPI grants no MPI_THREAD_MULTIPLE")
    assert result.stdout.count("fine") == 2


ENDS = """
kept = [c]
for shared in "10":
    os.environ["PSGD_SHARED"] = shared
    kept.append(collectives.Communicator(world))
for each in kept[1:]:
    each.Iallreduce(x, y).Wait()
    each.Iallreduce(x, y)  # neither waited for nor freed
if rank == 0:
    print("end", flush=True)
"""


@pytest.mark.parametrize("progress", ["0", "1"])
def test_a_program_may_end_without_wait_and_free(job, progress):
    result = job(2, code(ENDS, n=1000), env={"PSGD_PROGRESS": progress}, timeout=20)
    assert result.returncode == 0, result.stderr
    assert "end" in result.stdout
    assert "Traceback" not in result.stderr and "Fatal" not in result.stderr


MANY = """
def count():
    with open("/proc/self/maps") as file:
        maps = len(file.readlines())
    return maps, len(os.listdir("/proc/self/fd"))
def one():
    d = collectives.Communicator(world)
    d.Allreduce(x, y)
    d.free()
held = [world.Dup() for _ in range({held})]
for _ in range(20):
    one()
before = count()
for _ in range({times}):
    one()
after = count()
assert after[0] <= before[0] + 20 and after[1] <= before[1], (before, after)
print("fine", flush=True)
"""


@pytest.mark.slow
def test_thousands_of_communicators_one_after_the_other(job):
    """MPICH has 2047 communicators at a time, most of which are held here: each that is not freed is one less for ever.

    (5000 were run by hand.)
    """
    times = 5000 if int(os.environ.get("PSGD_TEST_SLOW", "0")) else 250
    result = job(2, code(MANY, n=10, times=times, held=0 if mpi.is_open_mpi() else 1900), timeout=110, check=True)
    assert result.stdout.count("fine") == 2
