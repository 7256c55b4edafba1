"""What a rank has of a model: agreed between all, or refused on all."""

import pytest
from harness.oracle import same_error
from harness.pieces import WHOLE, layout_of

from psgd.checkpoint.pieces.model_part import ModelPart, name_of
from psgd.kernels.errors import AgreedUsageError, UsageError


def part(comm, layout, whole=WHOLE, **coordinates):
    return ModelPart(comm, comm, coordinates=coordinates, layout=layout, whole=whole)


@pytest.mark.ranks(4)
def test_all_ranks_know_all_pieces_in_the_order_of_their_places(comm):
    stage, place = 1 - comm.rank // 2, comm.rank % 2  # the last stage comes first
    made = part(comm, layout_of(2, 2, stage, place), pipe=stage, tensor=place)
    assert list(made.pieces) == ["pipe0tensor0", "pipe0tensor1", "pipe1tensor0", "pipe1tensor1"]
    assert all(made.pieces[f"pipe{s}tensor{t}"] == layout_of(2, 2, s, t) for s in range(2) for t in range(2))
    assert made.first == (stage == 0 and place == 0)
    assert made.largest(comm.rank % 3) == 2


@pytest.mark.ranks(2)
def test_parts_that_do_not_make_a_model_are_refused_on_all_ranks(comm):
    first = layout_of(2, 1, 0, 0)
    refused = [
        (lambda: part(comm, first, pipe=comm.rank), "21 elements of b.weight"),
        (lambda: part(comm, layout_of(2, 1, comm.rank, 0), pipe=0), "at pipe0 has another layout"),
        (lambda: part(comm, WHOLE, whole=first), "expected axes"),
        (lambda: part(comm, WHOLE, first, pipe=comm.rank), "rank 0 has a parameter that the whole model has not"),
    ]
    for make, words in refused:
        same_error(comm, make, AgreedUsageError, words)


@pytest.mark.parametrize("coordinates", [{}, {"Pipe": 0}, {"a-b": 1}, {"averylongaxisofthemodel": 1, "b": 1}])
def test_names_that_no_shard_can_have_are_refused(coordinates):
    with pytest.raises(UsageError, match="expected axes"):
        name_of(coordinates)
