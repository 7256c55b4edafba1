"""Slots: messages in order, freed in any order, no room where all are taken."""

import numpy as np

from psgd.parallel.stages.shared_slots import SharedInlet, SharedOutlet, Slots

DEPTH, BATCH, SHAPE = 3, 4, (5, 3)


def ends():
    memory = np.zeros(Slots.nbytes(DEPTH, BATCH, SHAPE, np.float32), np.uint8)
    return SharedOutlet(Slots(memory, DEPTH, BATCH, SHAPE, np.float32)), SharedInlet(
        Slots(memory, DEPTH, BATCH, SHAPE, np.float32)
    )


def message(number, samples=BATCH):
    return np.full((samples, *SHAPE), number, np.float32)


def test_messages_come_in_order_and_slots_are_freed_in_any():
    outlet, inlet = ends()
    assert not inlet.arrived()
    assert all(outlet.send(message(k), 10 * k) for k in range(DEPTH))
    assert not outlet.send(message(9), 1)
    taken = []
    for k in range(DEPTH):
        assert inlet.arrived()
        taken.append(inlet.take(BATCH))
        assert np.array_equal(taken[-1][1], message(k)) and taken[-1][2] == 10 * k
    assert not inlet.arrived()
    for k, index in enumerate((1, 2, 0)):
        inlet.release(taken[index][0])
        assert outlet.send(message(10 + k, samples=k + 1), 77)
        assert not outlet.send(message(99), 1)
        assert inlet.arrived()
        slot, array, total = inlet.take(k + 1)
        assert (slot, total) == (taken[index][0], 77) and np.array_equal(array, message(10 + k, k + 1))
