"""The ring on GPUs over each of its transports, on real ranks with host memory in place of the GPU's."""

from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest

from psgd.collectives.arguments.operations import MAX_, MEAN_, SUM_
from psgd.collectives.device import ring as rings
from psgd.collectives.device.cuda_aware import CudaAwareMpi
from psgd.collectives.device.staged import REGION_BYTES, Mailbox, Relay
from psgd.collectives.device.tasks import DeviceEvent
from psgd.collectives.mpi.node import share_memory
from psgd.collectives.mpi.split import split
from psgd.kernels import reduce

SIZES = (0, 1, 65, 1023, 20011)


class HostGpu:
    """Does what a GPU does only when it is polled a third time: who does not wait is found out."""

    def __init__(self):
        self.memory = {}
        self.pinned = set()
        self.waiting = []

    def scratch(self, name, nbytes):
        if name not in self.memory or self.memory[name].nbytes < nbytes:
            self.memory[name] = np.full(nbytes, 255, np.uint8)
        return self.memory[name][:nbytes]

    def combine(self, op, out, a, b, ranks):
        def work():
            reduce.combine(op.code, out, a, b)
            if ranks:
                op.finish(out, ranks)

        return self._later(work)

    def copy(self, to, source):
        return self._later(lambda: to.__setitem__(slice(None), source))

    def to_host(self, to, source):
        return self._later(lambda: to.__setitem__(slice(None), source.view(np.uint8)))

    def to_device(self, to, source):
        return self._later(lambda: to.view(np.uint8).__setitem__(slice(None), source))

    def pin(self, memory):
        assert memory.ctypes.data not in self.pinned  # CUDA refuses to register memory twice
        self.pinned.add(memory.ctypes.data)

    def unpin(self, memory):
        self.pinned.remove(memory.ctypes.data)

    def poll(self):
        went = False
        for work in list(self.waiting):
            work[0] -= 1
            if work[0] == 0:
                work[1]()
                went = True
                self.waiting.remove(work)
                work[2].set()
        return went

    def _later(self, work):
        flag = DeviceEvent()
        self.waiting.append([3, work, flag])
        return flag


def make(kind, comm, gpu):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if kind == "direct":
        return CudaAwareMpi(comm, left, right)
    if kind == "relay":
        return Relay(gpu, comm, left, right)
    memories, _ = share_memory(comm, list(range(comm.size)), REGION_BYTES)
    return Mailbox(gpu, [memories[rank] for rank in (comm.rank, left, right)])


def run(steps):
    for test in steps:
        while not test():
            pass


def values(rank, n):
    """Different on each rank and at each place, small enough for exact sums."""
    return ((np.arange(n) * (7 * rank + 3)) % 8191 + rank).astype(np.float32)


@pytest.mark.parametrize("kind", ["direct", "mailbox", "relay"])
@pytest.mark.ranks(2, 5)
def test_every_verb_equals_numpy(comm, kind):
    own = comm.Dup()
    gpu = HostGpu()
    transport = make(kind, own, gpu)
    transport.largest = 2048  # so that 20011 elements make more lanes than are under way at a time
    ring = rings.Ring(gpu, transport, own.rank, own.size)
    size, rank = own.size, own.rank
    for n in SIZES:
        everyone = [values(r, n) for r in range(size)]
        for op, expected in (
            (SUM_, sum(e.astype(np.float64) for e in everyone)),
            (MAX_, np.max(everyone, axis=0)),
            (MEAN_, sum(e.astype(np.float64) for e in everyone) / size),
        ):
            send = everyone[rank].copy()
            guarded = np.full(n + 2, -7, np.float32)
            run(ring.allreduce(send, guarded[1:-1], op))
            np.testing.assert_allclose(guarded[1:-1], expected, rtol=1e-6)
            assert guarded[0] == guarded[-1] == -7
            np.testing.assert_array_equal(send, everyone[rank])  # not changed
            run(ring.allreduce(send, send, op))
            np.testing.assert_array_equal(send, guarded[1:-1])  # in place, the same bits
        counts = [len(part) + 5 * (r == 1) for r, part in enumerate(split(n, size, 1))]
        starts = [0, *accumulate(counts)]
        parts = [range(start, start + count) for start, count in zip(starts, counts, strict=False)]
        everyone = [values(r, starts[-1]) for r in range(size)]
        send, out = everyone[rank].copy(), np.full(counts[rank], -7, np.float32)
        run(ring.reduce_scatter(send, out, parts, SUM_))
        np.testing.assert_array_equal(out, sum(everyone)[parts[rank].start : parts[rank].stop])
        whole = np.full(starts[-1], -7, np.float32)
        whole[parts[rank].start : parts[rank].stop] = values(rank, counts[rank])
        run(ring.allgather(whole, parts))
        np.testing.assert_array_equal(whole, np.concatenate([values(r, counts[r]) for r in range(size)]))
    own.Barrier()
    transport.close()
    assert not gpu.pinned
    own.Free()


@pytest.mark.ranks(3)
def test_the_order_of_summing_is_the_rings(comm):
    """Chunk c is ((x[c+1] + x[c+2]) + ...) + x[c]: values that make another order another result."""
    own = comm.Dup()
    ring = rings.Ring(HostGpu(), CudaAwareMpi(own, (own.rank - 1) % 3, (own.rank + 1) % 3), own.rank, 3)
    rng = np.random.default_rng(5)
    everyone = (rng.standard_normal((3, 300)) * 10.0 ** rng.integers(-6, 6, (3, 300))).astype(np.float32)
    out = np.empty(300, np.float32)
    run(ring.allreduce(everyone[own.rank], out, SUM_))
    for c, part in enumerate(split(300, 3, 16)):
        cut = slice(part.start, part.stop)
        x = [everyone[r][cut] for r in range(3)]
        np.testing.assert_array_equal(out[cut], (x[(c + 1) % 3] + x[(c + 2) % 3]) + x[c])
    own.Free()


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("size", [2, 3])
def test_segments_are_no_longer_than_a_transport_takes_and_fill_its_lanes(size, lanes):
    sized = SimpleNamespace(poll=None, least=1024, largest=4096, lanes=lanes)
    ring = rings.Ring(HostGpu(), sized, 0, size)
    for longest in (1, 16, 255, 256, 511, 512, 1023, 1280, 2000, 4096, 8191, 100_000):
        parts = [range(longest), *[range(longest - 1)] * (size - 1)]
        segment = ring._segment(parts, 4)
        count = -(-longest // segment)
        assert segment * 4 <= sized.largest and segment % 16 == 0
        assert count == 1 or segment * 4 >= sized.least  # shorter ones cost more than they hide
        if longest * 4 >= lanes * sized.least:
            assert count >= lanes  # one is summed while another travels
