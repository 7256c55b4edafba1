"""Who holds which shard, whoever dies."""

import itertools

import pytest

from psgd.server.replicas.holders import Holders, Move


def test_each_shard_is_held_by_two_that_live_and_each_server_by_its_number_at_first():
    for servers in range(2, 6):
        assert [Holders(servers).of(shard)[0] for shard in range(servers)] == list(range(servers))
        for count in range(servers):
            for lost in itertools.combinations(range(servers), count):
                holders = Holders(servers, lost)
                for shard in range(servers):
                    found = holders.of(shard)
                    assert len(set(found)) == min(2, servers - count) and not set(found) & set(lost)
                answered = [shard for server in holders.living for shard in holders.answered_by(server)]
                assert sorted(answered) == list(range(servers))
                for server in holders.living:
                    held = holders.held_by(server)
                    assert sorted(held) == [s for s in range(servers) if server in holders.of(s)]
                    behind = holders.answered_by(server)
                    assert held[: len(behind)] == behind and behind[0] == server
                    for more in holders.living:  # what it answers for stays in front
                        if more != server:
                            after = Holders(servers, {*lost, more}).answered_by(server)
                            assert after[: len(behind)] == behind
                assert Holders.of_bits(servers, holders.bits).lost == set(lost)


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_what_is_moved_comes_from_one_that_had_it_to_one_that_had_not(servers):
    for order in itertools.permutations(range(servers), servers - 1):
        lost = []
        for server in order:
            holders = Holders(servers, lost)
            had = {s: holders.held_by(s) for s in holders.living}
            moves = holders.moves(server)
            lost.append(server)
            after = Holders(servers, lost)
            for move in moves:
                assert move.shard in had[move.source] and move.shard not in had[move.target]
                had[move.target].append(move.shard)
            assert {s: sorted(had[s]) for s in after.living} == {s: sorted(after.held_by(s)) for s in after.living}


def test_with_two_servers_nothing_is_moved():
    assert Holders(2).moves(0) == []
    assert Holders(3).moves(0) == [Move(0, 1, 2), Move(2, 2, 1)]
