"""Making a Communicator: what the environment says, and what fails on one rank."""

import os

import numpy as np
import pytest
from harness.oracle import check, communicator, same_error
from mpi4py import MPI

from psgd import collectives
from psgd.collectives.dispatch import engine as engine_module
from psgd.collectives.mpi import node as node_module
from psgd.collectives.mpi.agreement import TEXT_BYTES, packed, together, unpacked
from psgd.collectives.mpi.env import Variables
from psgd.collectives.mpi.shared_memory import enabled
from psgd.kernels.errors import Error, UsageError

NAMES = ("PSGD_SHARED", "PSGD_CHECK", "PSGD_PROGRESS", "PSGD_STALL", "PSGD_TIMEOUT", "PSGD_TUNING")


@pytest.fixture
def unset(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_what_holds_where_nothing_is_set(unset):
    standard = Variables(shared=True, checks=False, progress=None, stall_s=30.0, timeout_s=float("inf"))
    assert Variables.read() == standard
    for name in NAMES:
        unset.setenv(name, "")
    assert Variables.read() == standard


def test_what_may_be_set(unset):
    for name, value in zip(NAMES, ("0", "1", "0", "0.5", "1e3"), strict=False):
        unset.setenv(name, value)
    assert Variables.read() == Variables(False, True, False, 0.5, 1000.0)
    assert not enabled()
    for name, value in zip(NAMES, ("1", "0", "1", "inf", "inf"), strict=False):
        unset.setenv(name, value)
    assert Variables.read() == Variables(True, False, True, float("inf"), float("inf"))
    assert enabled()


WRONG = [
    *((name, value) for name in NAMES[:3] for value in ("2", "yes", "on", "-1", "true", " 1")),
    *((name, value) for name in NAMES[3:5] for value in ("nan", "-1", "0", "0.0", "-inf", "soon", "1 s")),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_anything_else_is_an_error_that_names_it(unset, name, value):
    unset.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        Variables.read()
    wanted = "0 or 1" if name in NAMES[:3] else "a number of seconds above 0"
    assert str(caught.value).startswith(f"{name}: expected {wanted}, got {value!r}; ")


@pytest.mark.ranks(1, 3, timeout=20)
@pytest.mark.parametrize("everywhere", [True, False])
def test_it_is_one_error_on_all_ranks(comm, everywhere):
    last = comm.size - 1
    for name, value in WRONG[::5]:
        variables = {name: value} if everywhere or comm.rank == last else {}
        text = same_error(comm, lambda v=variables: communicator(comm, **v).__enter__(), UsageError, name, repr(value))
        assert text.startswith(name if everywhere or comm.size == 1 else f"rank {last}: {name}")
    missing = communicator(comm, PSGD_TUNING="/nowhere/at/all.json").__enter__
    same_error(comm, missing, UsageError, "PSGD_TUNING", "/nowhere/at/all.json")
    with communicator(comm) as c:
        check(c, "Allreduce", 100, "float64")


def test_texts():
    for text in ("", "plain", "é" * 400):
        assert packed(text).shape == (TEXT_BYTES,) and unpacked(packed(text)) == text
    assert unpacked(packed("x" * 2000)) == "x" * TEXT_BYTES
    assert unpacked(packed("x" + "é" * 600)).startswith("x" + "é" * 511)


@pytest.mark.ranks(1, 3)
def test_what_fails_on_one_rank_fails_on_all(comm):
    def fail(error):
        raise error

    assert together(comm, "it", lambda: comm.rank) == comm.rank
    last = comm.size - 1
    prefix = "" if comm.size == 1 else f"rank {last}: "
    for error, kind, text in (
        (UsageError("n: expected more"), UsageError, "n: expected more"),
        (MemoryError("too much"), MemoryError, "it: MemoryError('too much')"),
        (OSError(24, "files"), Error, "it: OSError(24, 'files')"),
    ):
        said = same_error(comm, lambda e=error: together(comm, "it", lambda: fail(e) if comm.rank == last else 0), kind)
        assert said == prefix + text


@pytest.mark.ranks(2, 3, timeout=20)
def test_no_memory_on_one_rank(comm):
    """Whatever needs it first: shared memory, which others do without, and a rank's own."""
    for _ in range(3):
        real = engine_module.Control
        if comm.rank == 1:
            engine_module.Control = no_memory
        same_error(comm, lambda: collectives.Communicator(comm), MemoryError, "rank 1: Communicator: MemoryError")
        engine_module.Control = real
    real = node_module.shared_memory.SharedArray
    if comm.rank == 1:
        node_module.shared_memory.SharedArray = no_memory
    with communicator(comm) as c:
        node_module.shared_memory.SharedArray = real
        check(c, "Allreduce", 1000, "float32")
        assert c.last[1] == "messages"
    with communicator(comm) as c:
        check(c, "Allreduce", 1000, "float32")
        assert c.last[1] == "shared" or os.environ.get("PSGD_SHARED") == "0"


def no_memory(*_):
    raise MemoryError("none left")


LIMITED = """
import resource
import numpy as np
from mpi4py import MPI
from psgd import collectives
world = MPI.COMM_WORLD
with collectives.Communicator(world) as c:
    c.Allreduce(np.ones(4), np.ones(4))
kept = []
for spare in (64, 16, 8, 7, 6, 5, 4, 3, 2, 1):
    before = resource.getrlimit(resource.RLIMIT_AS)
    if world.rank == 1:
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (spare << 20), before[1]))
    try:
        kept.append(collectives.Communicator(world))
        said = "made"
    except Exception as error:
        said = repr(error)
    if world.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, before)
    everyone = world.allgather(said)
    assert len(set(everyone)) == 1, everyone
    if said == "made":
        got = np.zeros(4)
        kept[-1].Allreduce(np.ones(4), got)
        assert (got == world.size).all()
print("fine", flush=True)
"""


def test_a_rank_with_little_address_space(job):
    result = job(2, LIMITED, timeout=60, check=True)
    assert result.stdout.count("fine") == 2


@pytest.mark.ranks(2)
def test_requests_are_carried_forward_only_while_there_are_any(comm):
    """Every wait of the process looks after them: a communicator without any costs it nothing."""
    from psgd.collectives.mpi.watchdog import BACKGROUND

    before = len(BACKGROUND._all)
    with communicator(comm, PSGD_PROGRESS="0") as c, communicator(comm, PSGD_PROGRESS="0") as d:
        assert len(BACKGROUND._all) == before
        got = np.zeros(100_003)
        for each in (c, d):
            if comm.rank == 0:
                request = each.Iallreduce(np.ones(100_003), got)
                assert len(BACKGROUND._all) == before + 1
                comm.Barrier()
            else:
                comm.Barrier()
                request = each.Iallreduce(np.ones(100_003), got)
            request.Wait()
            assert (got == 2).all() and len(BACKGROUND._all) == before
        assert comm.allreduce(1, MPI.SUM) == 2


@pytest.mark.ranks(2, 3)
def test_checks_on_some_ranks_only_are_refused_on_all(comm):
    with (
        pytest.raises(UsageError, match="PSGD_CHECK: expected the same on all ranks"),
        communicator(comm, PSGD_CHECK=str(int(comm.rank == 1))),
    ):
        pass


@pytest.mark.ranks(2)
@pytest.mark.parametrize("shape", [(2**50,), (2**32, 2**32), (2**33, 2**31)])
def test_more_registered_memory_than_the_machine_has_is_an_error_on_all_ranks(comm, shape):
    with collectives.Communicator(comm) as c:
        with pytest.raises((MemoryError, UsageError), match="empty"):
            c.empty(shape, "u1")
        check(c, "Allreduce", 100, "float32")
