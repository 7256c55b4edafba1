"""All-reduce in one shot: every rank has the sum in rank order, whatever the size, the place and the type."""

import itertools
from ctypes import c_uint64

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group, values

from psgd.kernels.reduce import MAX, MIN, PROD, SUM

pytestmark = pytest.mark.gpu
KERNELS = {"flagged": (1, 2, 1023, 4097, 30_001), "pulled": (0, 1, 1023, 4097, 100_003)}


def run(name, kind, op, mine, into, divisor=0, blocks=2):
    """One call of all ranks; returns the groups."""
    from psgd.kernels.device.peers import launch

    groups, streams = group(len(mine))
    for each, stream, x, y in zip(groups, streams, mine, into, strict=True):
        head = each.arguments(7, 0)
        arguments = [head, c_uint64(x.data.ptr), c_uint64(y.data.ptr), c_uint64(x.size), launch.number(kind, divisor)]
        launch.Launch(each.function(kind, op, name), arguments)(blocks, 256, stream.ptr)
    for stream in streams:
        stream.synchronize()
    assert [int(each.host[1]) for each in groups] == [0] * len(groups)


@pytest.mark.parametrize(("name", "ranks"), list(itertools.product(KERNELS, (2, 3, 4))))
def test_sums_at_every_offset(name, ranks):
    xp = cupy()
    for n, offset in itertools.product(KERNELS[name], (0, 1, 5)):
        host = values(ranks, n, "float32", n)
        memory = [xp.full(n + 32, 77, np.float32) for _ in host]
        mine = [part[offset : offset + n] for part in memory]
        for x, value in zip(mine, host, strict=True):
            x[...] = xp.asarray(value)
        run(name, "float32", SUM, mine, mine)
        for x, whole in zip(mine, memory, strict=True):
            np.testing.assert_array_equal(x.get(), sum(host))
            assert (whole[:offset] == 77).all() and (whole[offset + n :] == 77).all()


@pytest.mark.parametrize("name", KERNELS)
def test_out_of_place_leaves_what_is_sent(name):
    xp = cupy()
    host = values(2, 5000, "float32")
    mine, into = [xp.asarray(each) for each in host], [xp.zeros(5000, np.float32) for _ in host]
    run(name, "float32", SUM, mine, into)
    for x, y, value in zip(mine, into, host, strict=True):
        np.testing.assert_array_equal(x.get(), value)
        np.testing.assert_array_equal(y.get(), sum(host))


TYPES = ("float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REDUCTIONS = {SUM: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}


@pytest.mark.parametrize("i", range(len(TYPES) + 4))
def test_every_type_and_every_operation(i):
    """Not every pair: each is compiled anew."""
    xp = cupy()
    kind = TYPES[i] if i < len(TYPES) else "float32"
    op = (SUM, PROD, MIN, MAX)[i % 4]
    host = values(3, 1023, kind, op, 5)
    expected = REDUCTIONS[op](REDUCTIONS[op](host[0], host[1]), host[2]).astype(kind)
    for name in KERNELS:
        mine = [xp.asarray(each) for each in host]
        run(name, kind, op, mine, mine)
        for x in mine:
            np.testing.assert_array_equal(x.get(), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_16_bit_floats_are_summed_in_float32_and_rounded_once(name):
    xp = cupy()
    host = [np.full(100, value, np.float16) for value in (2048, 1, 1, 1)]
    mine = [xp.asarray(each).view(np.uint16) for each in host]
    run(name, "float16", SUM, mine, mine)
    assert (mine[3].view(np.float16).get() == np.float16(2051)).all()  # one after the other it stays 2048
    mean = [xp.full(100, 40_000, np.float16).view(np.uint16) for _ in range(4)]
    run(name, "float16", SUM, mean, mean, divisor=4)
    assert (mean[0].view(np.float16).get() == np.float16(40_000)).all()  # the sum is no float16


@pytest.mark.parametrize("name", KERNELS)
def test_order_of_ranks_and_equal_bits_everywhere(name):
    xp = cupy()
    rng = np.random.default_rng(3)
    host = [(rng.standard_normal(4097) * 10.0 ** rng.integers(-6, 6, 4097)).astype(np.float32) for _ in range(4)]
    mine = [xp.asarray(each) for each in host]
    run(name, "float32", SUM, mine, mine, blocks=3)
    expected = ((host[0] + host[1]) + host[2]) + host[3]
    for x in mine:
        np.testing.assert_array_equal(x.get().view(np.int32), expected.view(np.int32))
