"""Cores for ranks: no two jobs get the same ones, and a job that cannot have its own gets none."""

import contextlib
import os
import subprocess
import sys

import pytest

from psgd.launch import cores

FOUR = {f"{n},{n + 4}": [n, n + 4] for n in range(4)}


@pytest.fixture
def machine(monkeypatch):
    """Four cores of two CPUs that nobody has; `machine(bound)` says which CPUs another job is bound to."""
    monkeypatch.setattr(cores, "usable", lambda: {f"test-{os.getpid()}-{name}": cpus for name, cpus in FOUR.items()})
    monkeypatch.setattr(cores, "sees_all_processes", lambda: True)

    def machine(bound=()):
        monkeypatch.setattr(cores, "_bound_elsewhere", lambda: set(bound))

    machine()
    return machine


def test_two_jobs_have_different_cores(machine):
    with cores.reserved(2) as first:
        assert first == [[0, 4], [1, 5]]
        with cores.reserved(1) as second:
            assert second == [[2, 6]]
            with cores.reserved(2) as third:
                assert third == []
                with cores.reserved(1) as fourth:
                    assert fourth == [[3, 7]], "the third has kept none"
    with cores.reserved(4) as all_:
        assert all_ == list(FOUR.values())
    with cores.reserved(5) as too_many:
        assert too_many == []


def test_cores_of_other_programs_are_left_to_them(machine):
    machine(bound={5, 2})
    with cores.reserved(2) as found:
        assert found == [[0, 4], [3, 7]]
    with cores.reserved(3) as found:
        assert found == []


def test_in_a_container_cores_that_work_are_taken(machine, monkeypatch):
    ticks = iter([dict.fromkeys(range(8), (100, 100)), {cpu: (109 if cpu != 4 else 101, 110) for cpu in range(8)}])
    monkeypatch.setattr(cores, "sees_all_processes", lambda: False)
    monkeypatch.setattr(cores, "_idle_ticks", lambda: next(ticks))
    monkeypatch.setattr(cores, "BUSY_S", 0.0)
    with cores.reserved(1) as found:
        assert found == [[1, 5]]
    assert cores._bound_elsewhere() == set()


def test_a_core_is_free_again_when_its_job_was_killed(machine):
    name = f"\0psgd-core-{next(iter(cores.usable()))}"
    code = (
        "import socket; mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
        f"mine.bind({name!r}); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with cores.reserved(1) as found:
            assert found == [[1, 5]]
        other.kill()
    with cores.reserved(1) as found:
        assert found == [[0, 4]]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_threads_that_are_bound_are_seen():
    cpu = max(os.sched_getaffinity(0))
    code = (
        "import os, threading\n"
        f"def body(): os.sched_setaffinity(0, [{cpu}]); print(flush=True); input()\n"
        "thread = threading.Thread(target=body); thread.start(); thread.join()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert cpu in cores._bound_elsewhere()
        other.communicate(b"\n")


def test_a_rank_binds_itself(monkeypatch):
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: bound.append(list(cpus)))
    monkeypatch.setenv(cores.VARIABLE, cores.text([[0, 4], [1, 5]]))
    for rank, expected in ((0, [0, 4]), (1, [1, 5]), (2, None), (None, None)):
        bound.clear()
        monkeypatch.setattr(cores, "place", lambda rank=rank: None if rank is None else (rank, 3))
        cores.bind()
        assert bound == ([] if expected is None else [expected])


def test_the_real_ones():
    found = cores.usable()
    assert sorted(cpu for cpus in found.values() for cpu in cpus) == sorted(os.sched_getaffinity(0))
    ticks = cores._idle_ticks()
    assert set(os.sched_getaffinity(0)) <= set(ticks)
    assert all(0 <= idle <= all_ for idle, all_ in ticks.values())
    with contextlib.ExitStack() as held:
        claimed = [held.enter_context(cores.reserved(1)) for _ in range(len(found) + 1)]
    assert claimed[-1] == []
