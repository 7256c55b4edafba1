"""Steps that may fail on one rank, and the one text that all of them raise."""

import numpy as np
import pytest

from psgd.collectives.mpi import agreement
from psgd.collectives.mpi.agreement import TEXT_BYTES, join_texts, name_ranks, packed, together, unpacked
from psgd.kernels.errors import AgreedUsageError, Error, UsageError


@pytest.mark.parametrize(
    ("ranks", "name"),
    [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([4, 2], "ranks 2, 4"), ([7, 6, 5], "ranks 5-7")],
)
def test_ranks_are_named_as_runs(ranks, name):
    assert name_ranks(ranks) == name


def test_texts_are_joined_by_who_reports_them():
    assert join_texts(["a", "a"], [0, 1]) == "a"
    assert join_texts(["a", "", "a"], [0, 1, 2]) == "ranks 0, 2: a"
    assert join_texts(["", "b", "a", "b"], range(4)) == "ranks 1, 3: b; rank 2: a"
    assert agreement.group_by_text([(2, "x"), (0, "y"), (3, "x")]) == [("ranks 2-3", "x"), ("rank 0", "y")]


@pytest.mark.parametrize("text", ["", "what went wrong", "ä" * 20, "x" * (TEXT_BYTES + 5)])
def test_a_text_has_a_fixed_size(text):
    data = packed(text)
    assert data.shape == (TEXT_BYTES,) and data.dtype == np.uint8
    assert unpacked(data) == text[:TEXT_BYTES]


def test_a_letter_that_is_cut_is_marked():
    assert unpacked(packed("x" * (TEXT_BYTES - 1) + "ä")) == "x" * (TEXT_BYTES - 1) + "\ufffd"


@pytest.mark.ranks(1, 3)
def test_what_was_made_comes_back_where_all_could(comm):
    assert together(comm, "a thing", lambda: comm.rank * 2) == comm.rank * 2


KINDS = {
    "usage": (AgreedUsageError, UsageError("wrong option"), "wrong option"),
    "memory": (MemoryError, MemoryError("none left"), "a thing: MemoryError('none left')"),
    "other": (Error, KeyError("x"), "a thing: KeyError('x')"),
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("which", KINDS)
def test_one_error_on_all_where_some_could_not(comm, which):
    kind, error, text = KINDS[which]

    def make():
        if comm.rank != 1:
            raise error

    with pytest.raises(kind) as caught:
        together(comm, "a thing", make)
    assert str(caught.value) == f"ranks 0, 2: {text}"
    assert (caught.value.__cause__ is None) == (comm.rank == 1)
