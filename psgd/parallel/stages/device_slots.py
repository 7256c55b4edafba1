"""Messages between two stages on GPUs of one host: slots in the receiver's GPU memory, which the sender has mapped.

A GPU copies a message to a slot by itself, and neither process waits for that: an event stands behind the copy, and
the receiver's stream waits for it on its GPU. A word in memory that both processes share says that the event is
recorded, so a host may have started passes long before their inputs are there. Freeing a slot works the same way back.

A large message leaves by way of a buffer of the sender's GPU, from which another stream copies it: so neither does
what is computed next wait for the copy, nor is anything overwritten that is still to leave.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.mpi.node import address_of
from psgd.kernels.array import Array
from psgd.kernels.memory import words

_LINE = 64
LARGE_BYTES = 1 << 20
"""From this size on a message leaves by another stream: below, the copy takes no longer than starting two."""
_BUFFERS = 2


@dataclass
class DeviceSlots:
    """One end's view of the slots of an edge.

    Attributes:
        state: memory on the host that both ends share, `state_bytes` of it, zero at first.
        arrays: the slots, (batch, *shape) each, on the receiver's GPU.
        filled: for each slot the sender's event behind its last copy.
        freed: for each slot the receiver's event behind its last use.
    """

    state: NDArray[Any]
    arrays: Sequence[Array]
    filled: Sequence[Any]
    freed: Sequence[Any]

    def __post_init__(self) -> None:
        first, depth = address_of(self.state), len(self.arrays)
        self.words = [first + _LINE * index for index in range(depth)]
        self.totals = [np.frombuffer(self.state, np.int64, 1, _LINE * index + 8) for index in range(depth)]

    @staticmethod
    def state_bytes(depth: int) -> int:
        """Returns how much memory on the host so many slots have."""
        return _LINE * depth

    @staticmethod
    def slot_bytes(batch: int, shape: Sequence[int], dtype: Any) -> int:
        """Returns how much memory of the GPU a slot has, so that the next one is aligned."""
        nbytes: int = batch * math.prod(shape) * np.dtype(dtype).itemsize
        return -(-nbytes // 256) * 256


class DeviceOutlet:
    """The sender's end. Implements `psgd.parallel.stages.links.Outlet` for arrays on the GPU.

    Slots are filled in turn, where the next one is free: so memory recurs from step to step.
    """

    def __init__(self, slots: DeviceSlots, gpu: Any) -> None:
        self._slots, self._gpu, self._next = slots, gpu, 1
        self._staged: list[Any] = []
        self._events: list[tuple[Any, Any]] = []  # of each buffer: it is written, it is read
        if slots.arrays and slots.arrays[0].nbytes >= LARGE_BYTES:
            first = slots.arrays[0]
            self._staged = [gpu.xp.empty(first.shape, first.dtype) for _ in range(_BUFFERS)]
            self._events = [(gpu.event()[0], gpu.event()[0]) for _ in range(_BUFFERS)]

    def send(self, message: Array, total: int) -> bool:
        """Starts to copy it to a free slot; False where there is none."""
        slots, depth = self._slots, len(self._slots.words)
        for turn in range(depth):
            index = (self._next - 1 + turn) % depth
            if words.load(slots.words[index]) == 0:
                self._copy(slots.arrays[index][: len(message)], message, slots.freed[index], slots.filled[index])
                slots.totals[index][0] = total
                words.store(slots.words[index], self._next)
                self._next += 1
                return True
        return False

    def _copy(self, slot: Array, message: Array, freed: Any, filled: Any) -> None:
        gpu = self._gpu
        if not self._staged or message.nbytes < LARGE_BYTES:
            gpu.wait(freed)
            gpu.copy(slot, message)
            gpu.record(filled)
            return
        at = self._next % _BUFFERS
        (written, read), staged = self._events[at], self._staged[at][: len(message)]
        gpu.wait(read)
        gpu.copy(staged, message)
        gpu.record(written)
        with gpu.side:
            gpu.wait(written)
            gpu.wait(freed)
            gpu.copy(slot, staged)
            gpu.record(read)
            gpu.record(filled)

    def close(self) -> None:
        """The memory is freed by who has made it."""


class DeviceInlet:
    """The receiver's end. Implements `psgd.parallel.stages.links.Inlet` with arrays on the GPU."""

    def __init__(self, slots: DeviceSlots, gpu: Any) -> None:
        self._slots, self._gpu, self._next, self._found = slots, gpu, 1, 0

    def arrived(self) -> bool:
        """Whether the next message is in a slot, or will be once the sender's GPU has come there."""
        for index, word in enumerate(self._slots.words):
            if words.load(word) == self._next:
                self._found = index
                return True
        return False

    def take(self, samples: int) -> tuple[int, Array, int]:
        """Returns the slot, the message and its total, after `arrived`; the current stream waits for the message."""
        self._next += 1
        self._gpu.wait(self._slots.filled[self._found])
        return self._found, self._slots.arrays[self._found][:samples], int(self._slots.totals[self._found][0])

    def release(self, slot: int) -> None:
        """What has been started on the current stream so far is the last to use the message."""
        self._gpu.record(self._slots.freed[slot])
        words.store(self._slots.words[slot], 0)

    def close(self) -> None:
        """The memory is freed by who has made it."""


class StagedOutlet:
    """For a stage on a GPU whose neighbour cannot be reached by it: sends by way of page-locked memory on the host.

    It waits for the GPU.

    Args:
        outlet: takes arrays on the host.
        gpu: of the stage.
        shape: of the largest message.
        dtype: of its elements.
    """

    def __init__(self, outlet: Any, gpu: Any, shape: Sequence[int], dtype: Any) -> None:
        self._outlet, self._gpu = outlet, gpu
        self._host = gpu.staging(shape, dtype)
        self._waiting = False  # a message is on the host that has not left

    def send(self, message: Array, total: int) -> bool:
        """As the outlet's; a message that found no room must be the next one, too."""
        there = self._host[: len(message)]
        if not self._waiting:
            self._gpu.download(there, message)
        self._waiting = not self._outlet.send(there, total)
        return not self._waiting

    def close(self) -> None:
        self._outlet.close()


class StagedInlet:
    """The other way round: messages reach the host, and are copied to the GPU."""

    def __init__(self, inlet: Any, gpu: Any) -> None:
        self._inlet, self._gpu = inlet, gpu

    def arrived(self) -> bool:
        return bool(self._inlet.arrived())

    def take(self, samples: int) -> tuple[int, Array, int]:
        slot, message, total = self._inlet.take(samples)
        return slot, self._gpu.xp.asarray(message), total

    def release(self, slot: int) -> None:
        self._inlet.release(slot)

    def close(self) -> None:
        self._inlet.close()
