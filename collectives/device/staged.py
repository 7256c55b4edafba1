"""Segments staged through pinned host memory: that of the node's ranks where they share it, else with messages.

Within a node the sender's GPU copies a segment into a slot of memory that both processes have mapped and pinned, and
the receiver's GPU copies it out of there: no processor touches the data. Each lane has two slots. Words beside the
slots count the segments put and taken, so no message passes.
"""

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.device.tasks import DeviceEvent, DeviceTask, TaskSteps
from psgd.collectives.device.transport import Gpu, PendingRequests
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.tags import Tag
from psgd.kernels.memory import words

SLOT_BYTES = 4 * 1024 * 1024
SLOTS = 2  # of a lane
LANES = 4  # both directions of the bus and both steps of a copy
_LINE_BYTES = 64
_HEAD_BYTES = 64 * 1024  # words, before the slots; pinned pages are whole


REGION_BYTES = _HEAD_BYTES + LANES * SLOTS * SLOT_BYTES
"""What one rank's memory for a mailbox takes."""


class Region:
    """One rank's memory: words for what it has put and taken (by address), and the slots that it puts segments in."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        start = address_of(memory)
        self.put = [start + lane * _LINE_BYTES for lane in range(LANES)]
        self.taken = [start + (LANES + lane) * _LINE_BYTES for lane in range(LANES)]
        self._slots = memory[_HEAD_BYTES:]

    def slot(self, lane: int, number: int, nbytes: int) -> NDArray[np.uint8]:
        """Where a lane's segment of that number lies."""
        start = (lane * SLOTS + number % SLOTS) * SLOT_BYTES
        return self._slots[start : start + nbytes]


class Mailbox:
    """Staging within a node. Implements `Transport`.

    Args:
        gpu: what pins the memory, for all GPUs of this process.
        memories: of this rank, its left-hand and its right-hand neighbour, REGION_BYTES each, zero at first.
    """

    name = "pinned, shared"
    lanes = LANES
    largest = SLOT_BYTES
    least = 1024 * 1024
    opens = False

    def __init__(self, gpu: Gpu, memories: Sequence[NDArray[np.uint8]]) -> None:
        self._gpu = gpu
        self._memories = list({address_of(memory): memory for memory in memories}.values())
        for memory in self._memories:
            gpu.pin(memory)
        self._own, self._left, self._right = (Region(memory) for memory in memories)
        self._sent, self._received = [0] * LANES, [0] * LANES
        self._looks: list[tuple[int, int, DeviceEvent]] = []

    def send(self, gpu: Gpu, lane: int, data: NDArray[Any]) -> DeviceEvent:
        return DeviceTask(self._put(gpu, lane, data))

    def receive(self, gpu: Gpu, lane: int, into: NDArray[Any]) -> DeviceEvent:
        return DeviceTask(self._take(gpu, lane, into))

    def poll(self) -> bool:
        done = [look for look in self._looks if words.load(look[0]) >= look[1]]
        for look in done:
            self._looks.remove(look)
            look[2].set()
        return bool(done)

    def _put(self, gpu: Gpu, lane: int, data: NDArray[Any]) -> TaskSteps:
        number = self._sent[lane]
        self._sent[lane] += 1
        yield self._reaches(self._right.taken[lane], number + 1 - SLOTS)
        yield gpu.to_host(self._own.slot(lane, number, data.nbytes), data)
        words.store(self._own.put[lane], number + 1)

    def _take(self, gpu: Gpu, lane: int, into: NDArray[Any]) -> TaskSteps:
        number = self._received[lane]
        self._received[lane] += 1
        yield self._reaches(self._left.put[lane], number + 1)
        yield gpu.to_device(into, self._left.slot(lane, number, into.nbytes))
        words.store(self._own.taken[lane], number + 1)

    def _reaches(self, address: int, number: int) -> DeviceEvent:
        """The word at an address has become so large."""
        event = DeviceEvent(words.load(address) >= number)
        if not event.done:
            self._looks.append((address, number, event))
        return event

    def close(self) -> None:
        for memory in self._memories:
            self._gpu.unpin(memory)
        self._memories = []


class Relay:
    """Staging between nodes: messages of pinned memory. Implements `Transport`.

    Args:
        gpu: what pins the memory, for all GPUs of this process.
        comm: private.
        left: rank that this one receives from.
        right: rank that this one sends to.
    """

    name = "pinned, messages"
    lanes = LANES
    largest = 1024 * 1024
    least = 256 * 1024
    opens = False

    def __init__(self, gpu: Gpu, comm: MPI.Intracomm, left: int, right: int) -> None:
        self._gpu, self._comm = gpu, comm
        self._left, self._right = left, right
        self._requests = PendingRequests()
        self.poll = self._requests.poll
        # Whole pages of its own: to pin a part of a page pins what else lies there.
        self._memory = np.frombuffer(mmap.mmap(-1, 2 * LANES * SLOTS * self.largest), np.uint8)
        gpu.pin(self._memory)
        slots = self._memory.reshape(2, LANES, SLOTS, self.largest)
        self._out, self._in = slots[0], slots[1]
        self._sent, self._received = [0] * LANES, [0] * LANES

    def send(self, gpu: Gpu, lane: int, data: NDArray[Any]) -> DeviceEvent:
        return DeviceTask(self._put(gpu, lane, data))

    def receive(self, gpu: Gpu, lane: int, into: NDArray[Any]) -> DeviceEvent:
        return DeviceTask(self._take(gpu, lane, into))

    def close(self) -> None:
        if self._memory.size:
            self._gpu.unpin(self._memory)
            self._memory = self._memory[:0]

    def _put(self, gpu: Gpu, lane: int, data: NDArray[Any]) -> TaskSteps:
        place = lane, self._sent[lane] % SLOTS
        self._sent[lane] += 1
        slot = self._out[place][: data.nbytes]
        yield gpu.to_host(slot, data)
        yield self._requests.event(self._comm.Isend(slot, self._right, Tag.LANE + lane))

    def _take(self, gpu: Gpu, lane: int, into: NDArray[Any]) -> TaskSteps:
        place = lane, self._received[lane] % SLOTS
        self._received[lane] += 1
        slot = self._in[place][: into.nbytes]
        yield self._requests.event(self._comm.Irecv(slot, self._left, Tag.LANE + lane))
        yield gpu.to_device(into, slot)
