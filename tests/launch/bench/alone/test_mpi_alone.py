"""The script of MPI's all-reduce alone prints seconds by size."""

import json

import pytest


@pytest.mark.ranks(2)
def test_seconds_by_size(comm):
    from psgd.launch.bench.alone import mpi_alone

    class World:
        COMM_WORLD = comm
        Request, MAX = mpi_alone.MPI.Request, mpi_alone.MPI.MAX

    whole, mpi_alone.MPI = mpi_alone.MPI, World
    said = []
    mpi_alone.print = said.append
    try:
        mpi_alone.main([4096, 65536])
    finally:
        mpi_alone.MPI = whole
        del mpi_alone.print
    if comm.rank == 0:
        found = json.loads(said[0])
        assert list(found) == ["4096", "65536"] and min(found.values()) > 0
