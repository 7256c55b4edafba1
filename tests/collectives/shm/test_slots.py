"""Copies through slots: every verb at the sizes around a piece, and more pieces than there are slots."""

import pytest
from harness.oracle import VERBS, check, communicator

from psgd.collectives.shm import layout

PIECE = layout.EXCHANGE_BYTES // 8


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("verb", VERBS)
def test_around_a_piece_and_all_around_the_slots(comm, verb):
    with communicator(comm) as c:
        for n in (1, PIECE - 1, PIECE, PIECE + 1):
            check(c, verb, n, "float64", algorithm="slots")
        if verb in ("Allreduce", "Allgatherv", "Bcast"):
            check(c, verb, (layout.EXCHANGE_COUNT + 2) * PIECE + 5, "float64", algorithm="slots")
        assert c.last[0] in ("slots", "direct")  # small registered arrays go directly


@pytest.mark.ranks(2, 3)
def test_a_call_begins_where_the_last_one_ended(comm):
    with communicator(comm) as c:
        for n in (3 * PIECE, 1, 2 * PIECE + 1, PIECE, 5 * PIECE):
            check(c, "Allreduce", n, "float32", "mean", algorithm="slots")
