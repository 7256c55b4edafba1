"""The script of MPI's Isend and Irecv alone prints seconds by size."""

import json

import pytest


@pytest.mark.ranks(2)
def test_seconds_by_size(comm):
    from psgd.launch.bench.alone import exchange_alone

    class World:
        COMM_WORLD = comm
        Request, MAX = exchange_alone.MPI.Request, exchange_alone.MPI.MAX

    whole, exchange_alone.MPI = exchange_alone.MPI, World
    said = []
    exchange_alone.print = said.append
    try:
        exchange_alone.main([4096, 65536])
    finally:
        exchange_alone.MPI = whole
        del exchange_alone.print
    if comm.rank == 0:
        found = json.loads(said[0])
        assert list(found) == ["4096", "65536"] and min(found.values()) > 0
