import time

import pytest

from psgd.collectives.waiting import Waiter, ranks_outnumber_cores


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("way", ["until", "flowing"])
def test_waits_until_the_test_is_true(crowded, way):
    answers = iter([None, 0, False, 7])
    getattr(Waiter(crowded), way)(lambda: next(answers))
    assert list(answers) == []


def test_an_error_of_the_test_passes():
    with pytest.raises(ZeroDivisionError):
        Waiter(True).until(lambda: 1 / 0)


def test_a_crowded_wait_leaves_the_core_to_others():
    end = time.perf_counter() + 0.3
    cpu = time.process_time()
    Waiter(True).until(lambda: time.perf_counter() > end)
    assert time.process_time() - cpu < 0.15


def test_a_wait_is_late_by_a_tenth_at_most():
    late = []
    for _ in range(5):
        end = time.perf_counter() + 0.05
        Waiter(True).until(lambda end=end: time.perf_counter() > end)
        late.append(time.perf_counter() - end)
    assert sorted(late)[2] < 0.006


@pytest.mark.ranks(1)
def test_one_rank_is_not_crowded(comm):
    assert not ranks_outnumber_cores(comm)


@pytest.mark.ranks(4)
def test_ranks_agree_on_being_crowded(comm):
    import os

    cores = len(set().union(*comm.allgather(os.sched_getaffinity(0))))
    assert ranks_outnumber_cores(comm) == (cores < 4)
