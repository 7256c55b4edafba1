"""Pairs of ranks: each meets each once, and what is measured between them."""

from collections import Counter

import pytest

from psgd.launch.doctor import pairs


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 13])
def test_a_tournament(n):
    members = [3 * k + 1 for k in range(n)]
    played = Counter(game for games in pairs.rounds(members) for game in games)
    assert played == Counter((a, b) for a in members for b in members if a < b)
    for games in pairs.rounds(members):
        ranks = [rank for game in games for rank in game]
        assert len(ranks) == len(set(ranks))  # nobody plays twice at a time


def test_sample():
    assert pairs.sample(range(5)) == [0, 1, 2, 3, 4]
    found = pairs.sample(range(100, 1124), 16)
    assert (len(found), found[0], found[-1]) == (16, 100, 100 + 15 * 64)


@pytest.mark.ranks(3)
def test_measures(comm):
    meter = pairs.Meter(comm)
    mine = meter.tournament([0, 1, 2])
    assert [(p.a, p.b) for p in mine] == {0: [(0, 1), (0, 2)], 1: [(1, 2)], 2: []}[
        comm.rank
    ] or comm.rank == 0  # in any order
    assert {(p.a, p.b) for each in comm.allgather(mine) for p in each} == {(0, 1), (0, 2), (1, 2)}
    for pair in mine:
        assert 0 < pair.latency_s < 0.1
        assert 1e6 < pair.bytes_per_s < 1e12
    again = meter.tournament([0, 2])
    assert [(p.a, p.b) for p in again] == ([(0, 2)] if comm.rank == 0 else [])
    if comm.rank < 2:  # one machine, one clock
        assert abs(meter.clock_offset(1 - comm.rank, asks=comm.rank == 1)) < 0.05
