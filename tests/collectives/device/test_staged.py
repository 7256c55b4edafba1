"""Segments through host memory between neighbours: no slot is written over before it was read, lanes do not meet."""

import os

import numpy as np
import pytest

from psgd.collectives.device.staged import LANES, REGION_BYTES, SLOTS, Mailbox, Region, Relay
from psgd.collectives.device.tasks import DeviceEvent
from psgd.collectives.mpi.node import address_of, share_memory


class Gpu:
    """Copies at once; knows what is pinned."""

    def __init__(self):
        self.pinned = []

    def to_host(self, to, source):
        to[:] = source.view(np.uint8)
        return DeviceEvent(True)

    def to_device(self, to, source):
        to.view(np.uint8)[:] = source
        return DeviceEvent(True)

    def pin(self, memory):
        self.pinned.append(address_of(memory))

    def unpin(self, memory):
        self.pinned.remove(address_of(memory))


def until(way, *events):
    while not all(event.done for event in events):
        way.poll()
        os.sched_yield()


def made(kind, comm, gpu):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if kind == "relay":
        return Relay(gpu, comm, left, right), left
    memories, _ = share_memory(comm, list(range(comm.size)), REGION_BYTES)
    if memories is None:
        pytest.skip("no shared memory here")
    return Mailbox(gpu, [memories[rank] for rank in (comm.rank, left, right)]), left


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", ["mailbox", "relay"])
def test_more_segments_than_slots_arrive_in_order_on_every_lane(comm, kind):
    own, gpu = comm.Dup(), Gpu()
    way, left = made(kind, own, gpu)
    for number in range(3 * SLOTS + 1):
        data = np.array([[1000.0 * lane + 10 * number + own.rank] * 7 for lane in range(LANES)])
        into = np.zeros((LANES, 7))
        events = [way.send(gpu, lane, data[lane]) for lane in range(LANES)]
        events += [way.receive(gpu, lane, into[lane]) for lane in reversed(range(LANES))]
        until(way, *events)
        np.testing.assert_array_equal(into[:, 0], [1000.0 * lane + 10 * number + left for lane in range(LANES)])
    own.Barrier()
    way.close()
    way.close()
    assert gpu.pinned == []
    own.Free()


@pytest.mark.ranks(2)
def test_a_slot_is_waited_for_until_it_was_read(comm):
    gpu = Gpu()
    way, _ = made("mailbox", comm, gpu)
    sends = [way.send(gpu, 0, np.full(4, float(number))) for number in range(SLOTS + 1)]
    comm.Barrier()
    way.poll()
    assert [event.done for event in sends] == [True] * SLOTS + [False]
    comm.Barrier()
    into = np.zeros((SLOTS + 1, 4))
    until(way, *(way.receive(gpu, 0, row) for row in into), *sends)
    assert into[:, 0].tolist() == [0.0, 1.0, 2.0][: SLOTS + 1]
    comm.Barrier()
    way.close()


def test_slots_of_a_region_do_not_overlap():
    region = Region(np.zeros(REGION_BYTES, np.uint8))
    starts = sorted(address_of(region.slot(lane, number, 1)) for lane in range(LANES) for number in range(SLOTS))
    assert min(np.diff(starts)) == (REGION_BYTES - 64 * 1024) // (LANES * SLOTS)
    assert address_of(region.slot(1, SLOTS, 1)) == address_of(region.slot(1, 0, 1))
    assert len({*region.put, *region.taken}) == 2 * LANES
