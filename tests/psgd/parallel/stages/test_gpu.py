"""What a pipeline asks of a GPU, on one."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def gpu():
    cupy()
    from psgd.parallel.stages.gpu import Gpu

    return Gpu()


def test_memory_and_events_are_opened_by_others_only():
    one = gpu()
    address, handle = one.allocate(1024)
    there = one.array(address, (4, 8), np.float32)
    there[...] = 3
    assert float(there.sum()) == 96 and len(bytes.fromhex(handle)) == 64
    assert one.reach("00" * 64) is None and one.reach_event("00" * 64) is None
    one.settle()
    one.free(address)


def test_copies_in_all_directions():
    one, xp = gpu(), cupy()
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    there = xp.empty((3, 4), np.float32)
    one.copy(there, host[:, ::-1])
    assert np.array_equal(there.get(), host[:, ::-1])
    other = xp.empty(12, np.float32)
    one.copy(other, there.T)
    assert np.array_equal(other.get(), host[:, ::-1].T.reshape(-1))
    back = one.staging((3, 4), np.float32)
    one.download(back, there)
    assert np.array_equal(back, host[:, ::-1])


def test_a_stream_waits_for_an_event():
    one, xp = gpu(), cupy()
    (event, _), values = one.event(), xp.zeros(1 << 22, np.float32)
    for _ in range(50):
        values += 1
    one.record(event)
    with one.side:
        one.wait(event)
        seen = values.copy()
    one.settle()
    assert float(seen.min()) == 50


def test_a_graph_repeats_what_it_has_recorded():
    one, xp = gpu(), cupy()
    values = xp.zeros(8, np.float32)

    def add():
        xp.add(values, values.dtype.type(1), out=values)

    add()
    launch = one.launcher(add)
    assert float(values[0]) == 1
    launch()
    launch()
    assert float(values[0]) == 3


def test_losses_in_the_order_of_their_passes():
    one, xp = gpu(), cupy()
    losses = one.losses(3)
    for scale in (0.5, 0.25):
        losses.begin()
        for k in range(3):
            losses.start(xp.full((2, 4), k, np.float32), xp.array([0, 1]), scale)
        losses.mark()
        while not losses.done():
            pass
        assert [losses.read(k) for k in range(3)] == pytest.approx([2 * scale * np.log(4)] * 3, rel=1e-6)
