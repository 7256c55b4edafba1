"""The raw MPI peer moves and applies what it says: otherwise its time means nothing."""

import numpy as np
import pytest

LR = 0.25


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("n", [2, 63, 4097, 100003])
@pytest.mark.parametrize("update", [False, True])
def test_push_pull(comm, servers, n, update):
    from psgd.collectives.mpi.split import split
    from psgd.launch.bench.peers import raw_mpi

    if servers >= comm.size:
        pytest.skip("no worker left")
    workers = range(servers, comm.size)
    repeats = 4
    start = np.arange(n, dtype=np.float32)
    cuts = [slice(cut.start, cut.stop) for cut in split(n, servers)]
    if comm.rank < servers:
        mine = start[cuts[comm.rank]].copy()
        pushes = [np.full(mine.size, np.nan, np.float32) for _ in workers]
        raw_mpi.server(comm, workers=workers, params=mine, pushes=pushes, repeats=repeats, lr=LR if update else None)
        pushed = repeats * sum(worker + 1 for worker in workers) if update else 0
        np.testing.assert_array_equal(mine, start[cuts[comm.rank]] - np.float32(LR * pushed))
    else:
        seconds = np.zeros(repeats)
        params = np.full(n, np.nan, np.float32)
        grads = np.full(n, comm.rank + 1, np.float32)
        raw_mpi.worker(comm, servers=range(servers), cuts=cuts, grads=grads, params=params, seconds=seconds)
        assert (seconds > 0).all()
        if not update:
            np.testing.assert_array_equal(params, start)
        elif len(workers) == 1:
            np.testing.assert_array_equal(params, start - np.float32(LR * repeats * (comm.rank + 1)))
    comm.Barrier()
