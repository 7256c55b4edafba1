"""Slots in GPU memory, with a simulated GPU: order, room, what is waited for, and large messages."""

import contextlib

import numpy as np
import pytest
from harness.fake_gpu import FakeGpu

from psgd.parallel.stages import device_slots
from psgd.parallel.stages.device_slots import DeviceInlet, DeviceOutlet, DeviceSlots, StagedInlet, StagedOutlet

BATCH, SHAPE, DEPTH = 3, (2,), 2


def ends(gpu):
    state = np.zeros(DeviceSlots.state_bytes(DEPTH) + 64, np.uint8)
    state = state[-state.ctypes.data % 64 :][: DeviceSlots.state_bytes(DEPTH)]
    arrays = [np.zeros((BATCH, *SHAPE), np.float32) for _ in range(DEPTH)]
    slots = DeviceSlots(state, arrays, [gpu.event()[0] for _ in arrays], [gpu.event()[0] for _ in arrays])
    return slots, DeviceOutlet(slots, gpu), DeviceInlet(slots, gpu)


def message(value, n=BATCH):
    return np.full((n, *SHAPE), value, np.float32)


def test_messages_come_in_order_and_slots_recur():
    _, outlet, inlet = ends(FakeGpu())
    assert not inlet.arrived()
    used = []
    for k in range(5):
        assert outlet.send(message(k, 1 + k % BATCH), 10 + k) and inlet.arrived()
        slot, found, total = inlet.take(1 + k % BATCH)
        assert found.shape == (1 + k % BATCH, *SHAPE) and (found == k).all() and total == 10 + k
        used.append(slot)
        inlet.release(slot)
    assert used == [0, 1, 0, 1, 0]


def test_there_is_room_for_as_many_as_there_are_slots():
    _, outlet, inlet = ends(FakeGpu())
    assert outlet.send(message(1), 3) and outlet.send(message(2), 3) and not outlet.send(message(3), 3)
    first, _, _ = inlet.take(BATCH) if inlet.arrived() else (None, None, None)
    second, found, _ = inlet.take(BATCH) if inlet.arrived() else (None, None, None)
    assert (first, second) == (0, 1) and (found == 2).all()
    inlet.release(second)  # out of turn
    assert outlet.send(message(3), 3) and inlet.arrived() and not outlet.send(message(4), 3)
    slot, found, _ = inlet.take(BATCH)
    assert slot == 1 and (found == 3).all()


@pytest.mark.parametrize("large", [False, True])
def test_each_end_waits_for_the_other_on_its_gpu(monkeypatch, large):
    monkeypatch.setattr(device_slots, "LARGE_BYTES", 1 if large else 1 << 20)
    gpu = FakeGpu()

    @contextlib.contextmanager
    def side():
        gpu.log.append("side")
        yield
        gpu.log.append("back")

    slots, outlet, inlet = ends(gpu)
    gpu.side = side() if large else contextlib.nullcontext()
    outlet.send(message(1), 3)
    freed, filled = id(slots.freed[0]), id(slots.filled[0])
    aside = gpu.log[gpu.log.index("side") + 1 : -1] if large else gpu.log
    assert [each for each in aside if each[1] in (freed, filled)] == [("wait", freed), ("record", filled)]
    if large:  # the copy begins behind what has been written, and the buffer is not written before it was read
        (written, read), *_ = outlet._events[1:]
        kept = [each for each in gpu.log if each not in (("wait", freed), ("record", filled))]
        assert kept == [
            ("wait", id(read)),
            ("record", id(written)),
            "side",
            ("wait", id(written)),
            ("record", id(read)),
            "back",
        ]
    gpu.log.clear()
    assert inlet.arrived()
    inlet.take(BATCH)
    inlet.release(0)
    assert gpu.log == [("wait", filled), ("record", freed)]


def test_by_way_of_the_host():
    gpu, (_, outlet, inlet) = FakeGpu(), ends(FakeGpu())
    out, into = StagedOutlet(outlet, gpu, (BATCH, *SHAPE), np.float32), StagedInlet(inlet, gpu)
    assert out.send(message(1), 3) and out.send(message(2, 2), 3)
    waiting = message(3)
    assert not out.send(waiting, 3)
    assert into.arrived()
    slot, found, total = into.take(BATCH)
    assert (found == 1).all() and total == 3
    into.release(slot)
    assert out.send(waiting, 3) and into.arrived() and (into.take(2)[1] == 2).all()
    assert into.arrived() and (into.take(BATCH)[1] == 3).all()
    out.close()
    into.close()
