"""Where copy engines find the other ranks' parts; on GPUs `test_on_gpus` has the bits of such runs."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.parallel.sharded import peer_gathers
from psgd.parallel.sharded.slices import Slices

RANGES = [range(7), range(7, 8), range(8, 40)]


class Memory:
    """All GPUs' memory as one array of bytes, by address; elements have 4 bytes."""

    def __init__(self, ranks):
        self.slices = [Slices(RANGES, ranks, rank) for rank in range(ranks)]
        self.starts, at = [], 64
        for each in self.slices:
            self.starts.append(at)
            at += 4 * each.size + 16
        self.whole = [at + 4 * part.start for part in RANGES]
        self.bytes = np.zeros(at + 4 * 40, np.uint8)

    def at(self, address, nbytes):
        return self.bytes[address : address + nbytes]


def at(address):
    return SimpleNamespace(itemsize=4, data=SimpleNamespace(ptr=address))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_copies_make_each_unit_whole(ranks):
    values = np.arange(1, 41, dtype=np.float32)
    memory = Memory(ranks)
    for each, start in zip(memory.slices, memory.starts, strict=True):
        own = np.concatenate([values[part.start : part.stop] for part in each.own])
        memory.at(start, own.nbytes)[:] = own.view(np.uint8)
    for rank, mine in enumerate(memory.slices):
        memory.at(memory.whole[0], 4 * 40)[:] = 0
        own = [at(memory.starts[rank] + 4 * mine.place(unit).start) for unit in range(3)]
        vectors = [0 if each == rank else start for each, start in enumerate(memory.starts)]
        copies = peer_gathers._copies(mine, own, [at(address) for address in memory.whole], vectors, rank)
        for unit in copies:
            for to, source, nbytes in unit:
                memory.at(to, nbytes)[:] = memory.at(source, nbytes)
        np.testing.assert_array_equal(memory.at(memory.whole[0], 4 * 40).view(np.float32), values)
        read = sum(nbytes for unit in copies for _, source, nbytes in unit if source < memory.starts[rank])
        assert read or not rank


@pytest.mark.ranks(2)
def test_none_on_the_host(comm):
    from psgd.parallel.sharded.order import behind

    values = np.zeros(4, np.float32)
    with Communicator(comm) as wrapped:
        slices = Slices([range(8)], comm.size, comm.rank)
        assert peer_gathers.create(wrapped, slices, values, [values], [np.zeros(8)], behind(values)) is None
