"""Bytes: the formulas, and what strategies without servers count by them."""

import numpy as np
import pytest

import psgd
from psgd.collectives.mpi import byte_counts

LINE = 11 * 8  # what a worker tells the others in each round


def test_formulas():
    assert [byte_counts.allreduce(p, 1200) for p in (1, 2, 3, 4)] == [0, 1200, 1600, 1800]
    assert [byte_counts.allgather(p, 100) for p in (1, 2, 5)] == [0, 100, 400]
    assert [byte_counts.bcast(p, 1200) for p in (1, 2, 3)] == [0, 600, 800]


@pytest.mark.ranks(2, 3)
def test_strategies_count_what_they_move(comm):
    """6 steps, then a round in which all say that they are done: (rounds, exchanges of the vector, in all)."""
    expected = {"allreduce": (7, 6), "averaging": (3, 2), "easgd": (3, 2)}
    for strategy, (rounds, exchanges) in expected.items():
        options = {} if strategy == "allreduce" else {"period": 3}
        params = np.zeros(3000)
        with psgd.connect(comm, params, strategy=strategy, **options) as ps:
            for _ in range(6):
                ps.step(2)
        counted = byte_counts.bcast(comm.size, params.nbytes) + rounds * byte_counts.allgather(comm.size, LINE)
        counted += exchanges * byte_counts.allreduce(comm.size, params.nbytes)
        assert (ps.bytes_sent, ps.bytes_received) == (counted, counted), strategy
