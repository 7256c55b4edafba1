import os
import time

import pytest

from psgd.collectives.mpi.wait import Waiter, cores_per_rank, ranks_outnumber_cores


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("way", ["until", "soon", "flowing"])
def test_waits_until_the_test_is_true(crowded, way):
    answers = iter([None, 0, False, 7])
    getattr(Waiter(crowded), way)(lambda: next(answers))
    assert list(answers) == []


@pytest.mark.parametrize("way", ["until", "soon", "flowing"])
def test_an_error_of_the_test_or_the_watch_passes(way):
    def watch():
        raise KeyError("a rank ended")

    with pytest.raises(ZeroDivisionError):
        getattr(Waiter(True), way)(lambda: 1 / 0)
    with pytest.raises(KeyError, match="a rank ended"):
        getattr(Waiter(True, watch), way)(lambda: False)


@pytest.mark.parametrize("way", ["until", "soon", "flowing"])
def test_it_watches_between_two_tests_and_not_where_there_is_nothing_to_wait_for(way):
    said, answers = [], iter([False, False, True])
    waiter = Waiter(False, lambda: said.append("watch"))
    getattr(waiter, way)(lambda: True)
    assert said == []

    def test():
        said.append("test")
        return next(answers)

    getattr(waiter, way)(test)
    assert said.count("test") == 3
    assert said[0] == "test" and said[-2:] == ["watch", "test"]


@pytest.mark.parametrize("way", ["until", "soon"])
@pytest.mark.alone
def test_a_crowded_wait_leaves_the_core_to_others(way):
    end = time.perf_counter() + 0.3
    cpu = time.process_time()
    getattr(Waiter(True), way)(lambda: time.perf_counter() > end)
    assert time.process_time() - cpu < 0.15


@pytest.mark.parametrize("way", ["until", "soon"])
@pytest.mark.alone
def test_a_wait_is_late_by_a_tenth_at_most(way):
    late = []
    for _ in range(5):
        end = time.perf_counter() + 0.05
        getattr(Waiter(True), way)(lambda end=end: time.perf_counter() > end)
        late.append(time.perf_counter() - end)
    assert sorted(late)[2] < 0.006


class Clock:
    """Time that passes by `tick` each time somebody looks, and by what is slept; yields and sleeps are noted."""

    def __init__(self, monkeypatch, tick):
        self.now, self.tick = 0.0, tick
        self.yields, self.sleeps = [], []
        monkeypatch.setattr(time, "perf_counter", self.look)
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(os, "sched_yield", lambda: self.yields.append(self.now))

    def look(self):
        self.now += self.tick
        return self.now

    def sleep(self, seconds):
        self.sleeps.append((self.now, seconds))
        self.now += seconds

    def later(self, seconds):
        end = self.now + seconds
        return lambda: self.now >= end


def test_soon_yields_first_and_sleeps_later(monkeypatch):
    clock = Clock(monkeypatch, 10e-6)
    Waiter(True).soon(clock.later(0.8e-3))  # within the millisecond: never asleep, the core given away at each turn
    assert clock.sleeps == [] and 70 <= len(clock.yields) <= 80

    clock = Clock(monkeypatch, 10e-6)
    Waiter(True).soon(clock.later(0.1))
    assert max(clock.yields) < 1.1e-3 < min(at for at, _ in clock.sleeps) + 0.1e-3
    for at, seconds in clock.sleeps:  # a tenth of the time waited, 1 ms at most
        assert seconds == pytest.approx(min(1e-3, at / 10), abs=2e-6)
    assert clock.sleeps[-1][1] == 1e-3

    clock = Clock(monkeypatch, 10e-6)
    Waiter(False).soon(clock.later(19e-3))  # a core of its own: it spins, for 20 ms
    assert clock.sleeps == clock.yields == []
    Waiter(False).soon(clock.later(30e-3))
    assert clock.sleeps and clock.yields == []


def test_until_sleeps_at_once_where_crowded(monkeypatch):
    clock = Clock(monkeypatch, 10e-6)
    Waiter(True).until(clock.later(0.8e-3))
    assert clock.yields == []
    assert clock.sleeps[0] == (pytest.approx(20e-6), 20e-6)


@pytest.mark.ranks(1, 3)
def test_cores_per_rank(comm):
    cores = len(set().union(*comm.allgather(os.sched_getaffinity(0))))
    assert cores_per_rank(comm) == pytest.approx(cores / comm.size)


@pytest.mark.ranks(4)
def test_cores_are_the_union_of_those_that_ranks_may_use(comm):
    """Each rank is bound to a core, as mpiexec does it: several to the same one where there are more ranks."""
    before = os.sched_getaffinity(0)
    every = sorted(before)
    try:
        os.sched_setaffinity(0, {every[comm.rank % min(2, len(every))]})
        assert cores_per_rank(comm) == min(2, len(every)) / 4
        assert ranks_outnumber_cores(comm)
        os.sched_setaffinity(0, {every[0]})
        assert cores_per_rank(comm) == 1 / 4
        alone = comm.Split(comm.rank)
        assert cores_per_rank(alone) == 1 and not ranks_outnumber_cores(alone)
        alone.Free()
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.ranks(1)
def test_one_rank_is_not_crowded(comm):
    assert not ranks_outnumber_cores(comm)


@pytest.mark.ranks(4)
def test_ranks_agree_on_being_crowded(comm):
    cores = len(set().union(*comm.allgather(os.sched_getaffinity(0))))
    assert ranks_outnumber_cores(comm) == (cores < 4)
