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
    assert made.place == f"pipe={stage},tensor={place}"
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


DYING = """
import os, sys
import numpy as np
from mpi4py import MPI
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.kernels.errors import PeerLostError
from psgd.nn.layout import Layout
from psgd.optim.whole_norm import WholeNorm

comm = MPI.COMM_WORLD
whole, layout = Layout([("a", (3,)), ("b", (4,))]), Layout([[("a", (3,))], [("b", (4,))]][comm.rank])
part = ModelPart(comm, comm, coordinates={"pipe": comm.rank}, layout=layout, whole=whole)
norm = WholeNorm(comm, layout, whole, part.wait)
assert part.largest(comm.rank) == 1
comm.Barrier()
if comm.rank == 1:
    os.kill(os.getpid(), 9)
for wait in (lambda: part.largest(0), lambda: norm.total(norm.local(np.zeros(layout.size, np.float32), 0))):
    try:
        wait()
    except PeerLostError as error:
        print("lost:", error, file=sys.stderr, flush=True)
os._exit(1)
"""


def test_a_killed_rank_is_an_error_where_others_wait_for_it(job):
    result = job(2, DYING, timeout=40, ulfm=True)
    assert result.stderr.count("lost: model in pieces: the process of rank 1 ended") == 2
