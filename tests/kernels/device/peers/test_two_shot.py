"""Steps of `staged`: all-reduce, reduce-scatter, all-gather and broadcast, in many pieces and in one."""

import itertools
import math
from ctypes import c_uint32, c_uint64

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group, values

from psgd.kernels.reduce import SUM

pytestmark = pytest.mark.gpu
SCATTER, GATHER, COPY = 1, 2, 4


def run(kind, arrays, steps, n=0, starts=(), lengths=(), root=0, blocks=3, piece=16, calls=1):
    """Calls of all ranks, whose `arrays` are (x, y, own) addresses."""
    from psgd.kernels.device.peers import launch

    ranks = len(arrays)
    groups, streams = group(ranks)
    chunks = launch.chunks_type(ranks)()
    if not n:
        chunks.start[:], chunks.length[:] = starts, lengths
    for each, stream, addresses in zip(groups, streams, arrays, strict=True):
        places = [c_uint64(address) for address in addresses]
        values_ = [c_uint32(steps), c_uint32(root), launch.number(kind, 0), c_uint32(piece)]
        start = launch.Launch(
            each.function(kind, SUM, "staged"), [each.arguments(7, 0), *places, c_uint64(n), chunks, *values_]
        )
        for _ in range(calls):
            start(blocks, 128, stream.ptr)
    for stream in streams:
        stream.synchronize()
    assert [int(each.host[1]) for each in groups] == [0] * ranks


def even(n, ranks, rank, width=4):
    """The first element of a rank's chunk: packs of `width` elements, cut evenly."""
    packs = math.ceil(n / width)
    return min(n, rank * math.ceil(packs / ranks) * width)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_reduce(ranks):
    xp = cupy()
    for n, offset, piece in itertools.product((1, 7, 63, 1023, 40_003), (0, 3), (1, 16, 600)):
        if n // piece > 20_000:
            continue
        host = values(ranks, n, "float32", n)
        memory = [xp.full(n + 32, 77, np.float32) for _ in host]
        mine = [part[offset : offset + n] for part in memory]
        for x, value in zip(mine, host, strict=True):
            x[...] = xp.asarray(value)
        places = [(x.data.ptr, x.data.ptr, x.data.ptr + 4 * even(n, ranks, r)) for r, x in enumerate(mine)]
        run("float32", places, SCATTER | GATHER, n, piece=piece)
        for x, whole in zip(mine, memory, strict=True):
            np.testing.assert_array_equal(x.get(), sum(host))
            assert (whole[:offset] == 77).all() and (whole[offset + n :] == 77).all()


def test_slots_are_not_overwritten_before_they_are_used():
    """Many calls in a row, of many pieces each: the last one's values are powers of two."""
    xp = cupy()
    mine = [xp.full(20_000, 1 + rank, np.float32) for rank in range(3)]
    places = [(x.data.ptr, x.data.ptr, x.data.ptr + 4 * even(20_000, 3, r)) for r, x in enumerate(mine)]
    run("float32", places, SCATTER | GATHER, 20_000, calls=20)
    for x in mine:
        assert (x == 6.0 * 3.0**19).all()


def test_reduce_scatter_and_all_gather_of_uneven_chunks_many_times():
    xp = cupy()
    lengths = [5, 0, 4097]
    starts = [0, 5, 5]
    host = values(3, 4102, "float32")
    mine, own = [xp.asarray(each) for each in host], [xp.zeros(max(1, n), np.float32) for n in lengths]
    run("float32", [(x.data.ptr, 0, o.data.ptr) for x, o in zip(mine, own, strict=True)], SCATTER, 0, starts, lengths)
    for start, n, o, x, value in zip(starts, lengths, own, mine, host, strict=True):
        np.testing.assert_array_equal(o[:n].get(), sum(host)[start : start + n])
        np.testing.assert_array_equal(x.get(), value)
    whole = [xp.zeros(4102, np.float32) for _ in host]
    places = [(o.data.ptr, w.data.ptr, w.data.ptr + 4 * s) for o, w, s in zip(own, whole, starts, strict=True)]
    run("float32", places, GATHER, 0, starts, lengths, calls=10)
    for w in whole:
        np.testing.assert_array_equal(w.get(), sum(host))


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast(root):
    xp = cupy()
    for n in (1, 1000, 100_003):
        host = values(3, n, "uint8", n)
        mine = [xp.asarray(each) for each in host]
        first = [even(n, 3, r, 16) for r in range(3)]
        places = [(x.data.ptr, x.data.ptr, x.data.ptr + f) for x, f in zip(mine, first, strict=True)]
        run("uint8", places, SCATTER | GATHER | COPY, n, root=root, calls=3)
        for x in mine:
            np.testing.assert_array_equal(x.get(), host[root])
