"""Gloo beside MPI's ranks: right results, in processes bound to no core, and missed quietly where it is not there."""

import importlib.util
import os

import numpy as np
import pytest


def skip_without_torch():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")


def started():
    from psgd.launch.bench.peers import processes

    return processes.Conversation(processes.python("psgd.launch.bench.peers.gloo_process"))


@pytest.mark.ranks(2)
def test_verified_and_timed_in_processes_that_may_use_all_cores(comm):
    skip_without_torch()
    from psgd import collectives
    from psgd.launch.bench.collective import table
    from psgd.launch.bench.collective.ranks import measure
    from psgd.launch.bench.peers import processes
    from psgd.launch.bench.peers.gloo import Gloo
    from psgd.launch.bench.problem import BenchOptions

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(before)])  # as mpiexec binds a rank, and with it what the rank starts
    process = started()
    try:
        gloo = Gloo.join(comm, process)
        assert gloo is not None
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            assert os.sched_getaffinity(int(thread)) == processes.launcher_cores()
        with collectives.Communicator(comm) as ours:
            for collective, op in (("allreduce", "sum"), ("allreduce", "mean"), ("allgather", "sum"), ("bcast", "sum")):
                options = BenchOptions(collective, "float32", op, buffers="private", repeats=2)
                rows = list(measure(comm, options, [16384, 65536], ours, gloo))
                assert all(row.seconds[table.GLOO] > 0 for row in rows), collective
                assert comm.allgather(rows[0].seconds[table.GLOO]) == [rows[0].seconds[table.GLOO]] * 2
            options = BenchOptions("allreduce", "uint16", "sum", buffers="private", repeats=2)
            (row,) = measure(comm, options, [16384], ours, gloo)
            assert table.GLOO not in row.seconds  # not a type of Gloo's
            assert table.MPI_NAME in row.seconds
        process.close()
        options = BenchOptions("allreduce")
        assert gloo.prepare(options, 64) is None  # it has ended on both ranks
    finally:
        os.sched_setaffinity(0, before)
        process.close()


@pytest.mark.ranks(2)
def test_one_that_fails_is_none_on_all_and_an_error_while_it_is_timed(comm):
    from psgd.kernels.errors import AgreedError
    from psgd.launch.bench.peers.gloo import Gloo
    from psgd.launch.bench.problem import BenchOptions

    class Answers:
        def ask(self, timeout_s, do, **words):
            if do == "prepare":
                return {"wrong": "rank 1: element 7" if comm.rank else ""}
            return {"seconds": [1.0 + comm.rank, 4.0 - comm.rank]} if good or comm.rank else {"error": "gone"}

    gloo, good = Gloo(comm, Answers()), True
    assert gloo.prepare(BenchOptions("allreduce"), 64) == "rank 1: element 7"
    np.testing.assert_array_equal(gloo.rounds(3, 2), [[2.0, 4.0]])  # of the slowest rank
    good = False
    with pytest.raises(AgreedError, match="Gloo failed while it was timed"):
        gloo.rounds(3, 2)
    assert Gloo.join(comm, Answers() if comm.rank else None) is None
