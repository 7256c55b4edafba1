"""Conversions against slices and sums of what all ranks have, drawn alike on each, and the ways that there are not."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Room
from psgd.parallel.tensor.convert import conversion
from psgd.parallel.tensor.layouts import FEATURES, PARTIAL, REPLICATED, SplitAlong

BATCH = 6
SHAPES = [((7,), 0), ((13,), -1), ((2,), 0), ((4, 7), -1), ((4, 7), 0), ((5, 3, 2), 1), ((40000,), 0)]


def summands(ranks, n, shape):
    return [np.random.default_rng([rank, n]).standard_normal((n, *shape)).astype(np.float32) for rank in range(ranks)]


def total(parts):
    """The sum in rank order, whose bits another order would not have."""
    whole = parts[0].copy()
    for part in parts[1:]:
        whole += part
    return whole


def part_of(whole, axis, ranks, rank):
    mine = FEATURES.shares(whole.shape[1:][axis], ranks)[rank]
    return np.take(whole, list(mine), axis=axis if axis < 0 else axis + 1)


def check(comm, xp=np, sizes=(BATCH, 1, 4)):
    """Runs every way on every shape, and returns how many results were compared."""
    compared = 0
    with Communicator(comm) as tensor:
        for shape, axis in SHAPES:
            room = Room(xp, BATCH, np.dtype(np.float32), shape, True)
            ways = {
                (source, target): conversion(tensor, source, target, shape, room)
                for source, target in [
                    (REPLICATED, REPLICATED),
                    (PARTIAL, REPLICATED),
                    (PARTIAL, SplitAlong(axis)),
                    (SplitAlong(axis), REPLICATED),
                    (REPLICATED, SplitAlong(axis)),
                    (SplitAlong(axis), SplitAlong(axis)),
                ]
            }
            for n in sizes:
                parts = summands(comm.size, n, shape)
                whole = total(parts)
                mine = np.ascontiguousarray(part_of(whole, axis, comm.size, comm.rank))
                have = {REPLICATED: whole, SplitAlong(axis): mine, PARTIAL: parts[comm.rank]}
                for (source, target), convert in ways.items():
                    x = xp.asarray(have[source])
                    if source == PARTIAL:
                        convert.source[:n] = x
                        x = convert.source[:n]
                    result = convert(x)
                    got = result if xp is np else result.get()
                    assert got.dtype == np.float32
                    np.testing.assert_array_equal(got, have[target], err_msg=f"{source} {target} {shape} {n}")
                    compared += 1
    return compared


@pytest.mark.ranks(1, 2, 3, 5)
def test_all_ways(comm):
    assert check(comm) == 6 * len(SHAPES) * 3


@pytest.mark.gpu
@pytest.mark.ranks(2)
def test_all_ways_on_a_gpu(comm):
    assert check(comm, cupy()) == 6 * len(SHAPES) * 3


@pytest.mark.ranks(2)
def test_there_is_no_way_to_summands_or_to_another_axis(comm):
    with Communicator(comm) as tensor:
        room = Room(np, BATCH, np.dtype(np.float32), (4, 4), True)
        for source, target in [
            (REPLICATED, PARTIAL),
            (PARTIAL, PARTIAL),
            (SplitAlong(0), PARTIAL),
            (SplitAlong(0), SplitAlong(1)),
        ]:
            with pytest.raises(UsageError, match="expected a way from one layout to another"):
                conversion(tensor, source, target, (4, 4), room)
