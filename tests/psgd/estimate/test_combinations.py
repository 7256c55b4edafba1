"""Estimates beside runs, of random combinations of model, strategy, mesh, sharding, recomputation, dtype and ranks."""

import pytest
from harness import combinations

FEW = (0, 2, 3, 4)
"""Of these all have few things to compile: sharded, in pieces, several workers, text."""


@pytest.mark.one_mpi
@pytest.mark.ranks(4, timeout=110)
def test_a_few(comm):
    every = combinations.cases(max(FEW) + 1)
    found = [combinations.judged(comm, every[number]) for number in FEW]
    wrong = comm.bcast([line for line, fine in found if not fine] if comm.rank == 0 else None)
    assert not wrong, wrong


@pytest.mark.one_mpi
@pytest.mark.ranks(4, timeout=110)
def test_sharded_pieces(comm):
    """Gradients in buffers in turn, whole because of microbatches, and whole because of a shared table."""
    wide, small = {"hidden": 1024}, {"width": 96, "layers": 2, "heads": 4}
    common = {"batch_size": 17, "optimizer": "adam", "workers": 2}
    every = [
        ("mlp", wide, 3, {"mesh": "tensor=2,data=2", "microbatches": 1, "accumulate": 2}),
        ("mlp", wide, 3, {"mesh": "pipe=2,data=2", "cut": "2"}),
        ("gpt", small, 2, {"mesh": "pipe=2,data=2", "cut": "2", "microbatches": 1, "accumulate": 2}),
    ]
    found = [
        combinations.judged(
            comm, combinations.Case(number, model, own, "float32", 4, "allreduce", shard, common | options)
        )
        for number, (model, own, shard, options) in enumerate(every)
    ]
    wrong = comm.bcast([line for line, fine in found if not fine] if comm.rank == 0 else None)
    assert not wrong, wrong


def test_the_list_has_all_of_it():
    every = combinations.cases(combinations.NUMBER)
    assert every[:5] == combinations.cases(5)
    assert {each.model for each in every} == set(combinations.MODELS)
    assert {each.shard for each in every} == {None, 1, 2, 3} and {each.ranks for each in every} == {2, 3, 4}
    assert {each.dtype for each in every} == {"float32", "float64"}
    assert sum("mesh" in each.options for each in every) > 3 < sum("recompute" in each.options for each in every)
