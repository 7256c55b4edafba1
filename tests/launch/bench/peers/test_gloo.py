"""Gloo on MPI's ranks gives the right results, can be started again, and is missed quietly where it is not there."""

import importlib.util

import pytest


def skip_without_torch():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_verified_twice(comm, op):
    skip_without_torch()
    from psgd import collectives
    from psgd.launch.bench.collective import table
    from psgd.launch.bench.collective.ranks import measure
    from psgd.launch.bench.peers.gloo import Gloo
    from psgd.launch.bench.problem import BenchOptions

    gloo = Gloo.start(comm)
    assert gloo is not None
    try:
        with collectives.Communicator(comm) as ours:
            for collective in ("allreduce", "reducescatter", "allgather", "bcast"):
                options = BenchOptions(collective, "float32", op, buffers="private", repeats=2)
                small, large = measure(comm, options, [16384, 65536], ours, gloo)
                if collective != "reducescatter":  # which older ones do not have
                    assert table.GLOO in small.seconds
                    assert table.GLOO in large.seconds
            options = BenchOptions("allreduce", "uint16", "sum", buffers="private", repeats=2)
            (row,) = measure(comm, options, [16384], ours, gloo)
            assert table.GLOO not in row.seconds  # not a type of Gloo's
            assert table.MPI_NAME in row.seconds
    finally:
        gloo.close()


@pytest.mark.ranks(2)
def test_missing_on_one_rank_is_missing_on_all(comm):
    from psgd.launch.bench.peers import gloo

    honest = gloo.installed
    gloo.installed = lambda: comm.rank == 0
    try:
        assert gloo.Gloo.start(comm) is None
    finally:
        gloo.installed = honest


@pytest.mark.ranks(2)
def test_a_store_that_fails_is_no_gloo(comm):
    skip_without_torch()
    from psgd.launch.bench.peers import gloo

    honest = gloo.meet
    gloo.meet = lambda comm, host: None
    try:
        assert gloo.Gloo.start(comm) is None
    finally:
        gloo.meet = honest
