"""The centre in shared memory by itself; `test_shared.py` has the workers' rounds."""

import ctypes

import numpy as np
import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.kernels import elastic
from psgd.kernels.errors import UsageError
from psgd.strategies.easgd.shared_centre import SharedCentre

N, TIMES = 501, 200


def made(comm, locks, dtype="f8"):
    params = np.full(N, 1.0 + comm.rank, dtype)
    centre = SharedCentre(comm, list(range(comm.size)), params, locks)
    centre.compile(params)
    comm.Barrier()
    return centre, params


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_an_exchange_moves_the_centre_of_all_and_leaves_the_parameters(comm, locks, dtype):
    centre, params = made(comm, locks, dtype)
    displacement, before = np.empty_like(params), 0.0
    assert centre.exchanges == 0 and centre.lines.totals() == (0, 0, 0, 0), "compiling changes nothing"
    comm.Barrier()
    for worker in range(comm.size):
        if worker == comm.rank:
            assert centre.exchange(displacement, params, 0.25, Waiter(crowded=True)) == worker + 1
            np.testing.assert_array_equal(displacement, 0.25 * (1.0 + worker - before))
        before += 0.25 * (1.0 + worker - before)
        comm.Barrier()
        np.testing.assert_array_equal(centre.params, before)
        assert centre.exchanges == worker + 1
        comm.Barrier()
    np.testing.assert_array_equal(params, 1.0 + comm.rank)


@pytest.mark.ranks(3)
def test_under_the_lock_each_exchange_has_a_place_of_its_own_and_none_is_lost(comm):
    centre, params = made(comm, locks=True)
    displacement, waiter = np.empty_like(params), Waiter.for_node(comm)
    places, moved = [], np.zeros(N)
    for _ in range(TIMES):
        places.append(centre.exchange(displacement, params, 0.125, waiter))
        moved += displacement
    comm.Barrier()
    assert sorted(place for some in comm.allgather(places) for place in some) == list(range(1, comm.size * TIMES + 1))
    np.testing.assert_allclose(centre.params, comm.allreduce(moved), rtol=1e-12)
    comm.Barrier()


@pytest.mark.ranks(2)
def test_who_waits_for_the_lock_looks_after_the_others(comm):
    """Worker 0 has the lock for good; the other's wait ends with what its waiter raises."""
    centre, params = made(comm, locks=True)
    if comm.rank == 0:
        ctypes.c_int64.from_address(centre._words + 8 * elastic.LOCK).value = 1
    comm.Barrier()

    def watch():
        raise TimeoutError

    if comm.rank == 1:
        with pytest.raises(TimeoutError):
            centre.exchange(np.empty_like(params), params, 0.5, Waiter(crowded=True, watch=watch))
        assert centre.exchanges == 0 and not centre.params.any()
    comm.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("locks", "name"), [(True, "async"), (False, "hogwild")])
def test_workers_on_several_nodes_are_refused(comm, locks, name):
    with pytest.raises(UsageError, match=f"easgd_order: {name} needs all workers on one node.*got 2 workers on sever"):
        SharedCentre(comm, [comm.rank], np.zeros(N), locks)
