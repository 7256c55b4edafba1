"""Ranks get a core each and give it back, and sleep at a quiet barrier."""

import os
import time

import pytest


@pytest.mark.ranks(2)
def test_one_core_each_and_all_of_the_launcher_again(comm):
    from psgd.launch.bench.peers import cores, processes

    before = os.sched_getaffinity(0)
    try:
        cores.pin(comm)
        mine = comm.allgather(os.sched_getaffinity(0))
        if len(before) >= 2:
            assert [len(each) for each in mine] == [1, 1] and mine[0] != mine[1]
        cores.unpin()
        assert os.sched_getaffinity(0) == processes.launcher_cores()
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.ranks(2)
def test_a_quiet_barrier_waits_for_all_and_takes_no_core(comm):
    from psgd.launch.bench.peers.cores import quiet_barrier

    quiet_barrier(comm)
    start, used = time.monotonic(), time.process_time()
    if comm.rank:
        time.sleep(0.3)
    quiet_barrier(comm)
    waited, used = time.monotonic() - start, time.process_time() - used
    assert waited > 0.29 and used < 0.5 * waited
