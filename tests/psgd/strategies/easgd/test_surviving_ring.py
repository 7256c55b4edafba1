"""The turn passes over one that has taken the centre and is gone; `test_surviving_round_robin.py` kills workers."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.strategies.easgd.surviving_ring import SurvivingRing

N, WORDS = 5, 2


def taken(ring, adds):
    ring.receive()
    np.add(ring.incoming, adds, out=ring.centre)
    ring.head[0] += adds
    ring.expect()
    ring.send()


@pytest.mark.ranks(3)
def test_the_newest_centre_goes_to_the_next_that_lives(comm):
    liveness = SimpleNamespace(check=lambda: None)
    reunion = SimpleNamespace(liveness=liveness, look=lambda: False)
    params = np.full(N, 10.0)
    ring = SurvivingRing(SimpleNamespace(workers=comm, params=params), WORDS, reunion)
    ring.begin(params, resumed=False)
    if comm.rank == 0:
        taken(ring, 1.0)
        ring.wait_sent()
    elif comm.rank == 1:
        ring.receive()  # and is gone with it
    assert ring.newest()[0] == (comm.rank < 2)
    comm.Barrier()
    others = comm.Split(int(comm.rank == 1))
    if comm.rank != 1:
        _, centre, head = ring.newest()
        centre, head = others.bcast((centre.copy(), head.copy()))
        ring.rebuild(others, [0, 2], centre, head)
        assert ring.right == 2 - comm.rank and ring.view == 1
        for _ in range(2):  # the turn is worker 2's, behind the dead
            taken(ring, 2.0 + comm.rank)
            ring.wait_sent()
        number, centre, head = ring.newest()
        last = 11.0 + (4.0 + 2.0) * 2
        if comm.rank == 0:
            assert (number, centre[0], head[0]) == (5, last, last - 10.0)
    comm.Barrier()
    ring.close()
