"""Gradients of parameters that several stages hold: who holds what, and sums in the order of stages."""

import numpy as np
import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.parallel.stages.tied import Tie, TiedGradients, find


def test_what_more_than_one_stage_holds():
    held = [{"a": 6, "b": 2}, {"c": 3}, {"b": 2, "d": 1}, {"a": 6, "b": 2}]
    assert find(held) == [Tie("a", (0, 3), 6), Tie("b", (0, 2, 3), 2)]
    assert find([{"a": 6}]) == []


@pytest.mark.ranks(3)
def test_sums_in_the_order_of_stages(comm):
    """Stages 0, 1, 2, 4 hold it; stages 1 and 4 are on rank 1. Other orders of adding have other bits."""
    private, waiter = comm.Dup(), Waiter(True)
    stages = (0, 1, 2, 4)
    values = np.float32([[1e8, 1], [1, 1e-8], [-1e8, 1], [3, -1]])
    mine = [at for at in stages if at % 3 == comm.rank]
    where = {("w", at): range(10 * index, 10 * index + 2) for index, at in enumerate(mine)}
    tied = TiedGradients(private, [Tie("w", stages, 2)], where, np.float32)
    assert tied.ranges == list(where.values())
    expected = values[0].copy()
    for value in values[1:]:
        expected += value
    for _ in range(3):
        grads = np.full(30, 7, np.float32)
        for at in mine:
            grads[where["w", at].start : where["w", at].stop] = values[stages.index(at)]
        tied.start(grads)
        waiter.until(tied.done)
        tied.finish(grads)
        for at in mine:
            assert np.array_equal(grads[where["w", at].start : where["w", at].stop], expected)
        assert (grads == 7).sum() == 30 - 2 * len(mine)
    private.Barrier()
    tied.close()
    private.Free()


@pytest.mark.ranks(3)
def test_two_ranks_sum_by_themselves_where_gpus_do(comm):
    """Of three parameters two are of two ranks each, and one of three; the arrays are on the host here."""
    private, waiter = comm.Dup(), Waiter(True)
    ties = [Tie("a", (0, 2), 3), Tie("b", (0, 1, 2), 2), Tie("c", (0, 2), 1)]
    places = {"a": range(0, 3), "b": range(4, 6), "c": range(8, 9)}
    where = {(tie.name, comm.rank): places[tie.name] for tie in ties if comm.rank in tie.stages}
    tied = TiedGradients(private, ties, where, np.float32, on_gpus=True)
    assert len(tied._between_gpus) == (0 if comm.rank == 1 else 2) and len(tied._sums) == 1
    for turn in range(3):
        grads = np.full(10, comm.rank + 1 + turn, np.float32)
        tied.start(grads)
        waiter.until(tied.done)
        tied.finish(grads)
        for tie in ties:
            if comm.rank in tie.stages:
                total = sum(at + 1 + turn for at in tie.stages)
                assert (grads[places[tie.name].start : places[tie.name].stop] == total).all()
        assert (grads[[3, 6, 7, 9]] == comm.rank + 1 + turn).all()
    private.Barrier()
    tied.close()
    private.Free()
