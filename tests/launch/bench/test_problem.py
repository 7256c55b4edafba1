"""What is given and what must come, against NumPy over all ranks at once."""

import numpy as np
import pytest

from psgd.launch.bench import problem
from psgd.launch.bench.problem import ALLGATHER, ALLREDUCE, BCAST, REDUCE_SCATTER, BenchOptions, Problem

SIZE = 3
REDUCED = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "mean": np.mean}


def problems(collective, dtype="float32", op="sum", nbytes=4000):
    return [Problem(BenchOptions(collective, dtype, op), nbytes, rank, SIZE) for rank in range(SIZE)]


@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64"])
@pytest.mark.parametrize("collective", [ALLREDUCE, REDUCE_SCATTER])
def test_reductions(collective, dtype, op):
    if op == "mean" and not dtype.startswith("float"):
        pytest.skip("of floats only")
    all_ = problems(collective, dtype, op)
    wide = np.stack([each.source() for each in all_]).astype(np.float64)
    whole = REDUCED[op](wide, axis=0)
    for rank, each in enumerate(all_):
        first = rank * each.block if collective == REDUCE_SCATTER else 0
        assert each.expected().tolist() == whole[first : first + each.receives].tolist()
    assert len({each.source().tobytes() for each in all_}) == SIZE  # no two ranks give the same


def test_gathering_and_broadcast():
    all_ = problems(ALLGATHER)
    joined = np.concatenate([each.source() for each in all_])
    for each in all_:
        assert np.array_equal(each.expected(), joined)
        assert np.array_equal(joined[each.own], each.source())
    assert len({each.source().tobytes() for each in problems(BCAST)}) == 1


@pytest.mark.parametrize(
    ("collective", "nbytes", "whole"), [(ALLREDUCE, 5, 8), (BCAST, 4, 4), (ALLGATHER, 4, 12), (REDUCE_SCATTER, 13, 24)]
)
def test_sizes_are_whole(collective, nbytes, whole):
    assert problem.whole_nbytes(BenchOptions(collective), nbytes, SIZE) == whole


def test_bus_bandwidth():
    assert [problem.bus_factor(name, 4) for name in (ALLREDUCE, ALLGATHER, REDUCE_SCATTER, BCAST)] == [
        *(1.5, 0.75, 0.75, 1.0)
    ]
