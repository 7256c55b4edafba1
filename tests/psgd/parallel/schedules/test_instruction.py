"""Where the input of an instruction comes from, and where its output goes."""

from itertools import product

import pytest

from psgd.parallel.schedules.instruction import Instruction, destination, place, source, stage


def test_stages_go_round_the_ranks():
    assert [place(each, 3) for each in range(6)] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert [stage(*place(each, 3), 3) for each in range(6)] == list(range(6))


def test_the_ends_use_samples_and_labels():
    assert source(Instruction("F", 0), 0, 4, 1) is None
    assert source(Instruction("B", 0), 3, 4, 1) is None
    assert source(Instruction("W", 0), 2, 4, 1) is None
    assert destination(Instruction("F", 0), 3, 4, 1) is None
    assert destination(Instruction("X", 0), 0, 4, 1) is None
    assert destination(Instruction("W", 0), 2, 4, 1) is None


def test_a_chunk_ends_where_the_next_rank_or_the_first_one_goes_on():
    assert destination(Instruction("F", 0, 0), 3, 4, 2) == (0, 1, "forward")
    assert source(Instruction("B", 0, 0), 3, 4, 2) == (0, 1, "backward")
    assert source(Instruction("F", 0, 1), 0, 1, 2) == (0, 0, "forward")


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (1, 3), (2, 1), (4, 2)])
def test_what_one_sends_the_other_waits_for(ranks, chunks):
    for rank, chunk, kind in product(range(ranks), range(chunks), "FBX"):
        goes = destination(Instruction(kind, 5, chunk), rank, ranks, chunks)
        if goes is not None:
            to, there, what = goes
            assert source(Instruction(kind, 5, there), to, ranks, chunks) == (rank, chunk, what)


def test_text():
    assert [str(Instruction("F", 3)), str(Instruction("W", 0, 1))] == ["F3", "W0.1"]
