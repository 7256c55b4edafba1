"""Messages between two stages in memory that both reach: slots, each with a word that says what is in it.

The sender copies a message to a free slot and goes on computing; the receiver computes on the slot itself, and frees
it when its backward pass is done with it, in any order. No call of MPI is needed for a message to move.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.mpi.node import address_of
from psgd.kernels.memory import words

_LINE = 64  # bytes of a cache line: words do not share one, and slots begin one


class Slots:
    """A view of memory as `depth` slots for messages of up to `batch` samples.

    Args:
        memory: `nbytes` of it, zero at first.
        depth: number of slots.
        batch: most samples of a message.
        shape: of one sample.
        dtype: of the elements.

    Attributes:
        arrays: the slots, (batch, *shape) each.
        words: the address of each slot's word: 0 is free, else the number of the message in it, from 1.
        totals: of each slot, the samples of the batch that its message is from, (1,).
    """

    def __init__(self, memory: NDArray[Any], depth: int, batch: int, shape: Sequence[int], dtype: Any) -> None:
        message = _message_bytes(batch, shape, dtype)
        self.words = [address_of(memory) + _LINE * index for index in range(depth)]
        starts = [_LINE * depth + message * index for index in range(depth)]
        count = batch * math.prod(shape)
        self.arrays = [np.frombuffer(memory, dtype, count, start).reshape(batch, *shape) for start in starts]
        self.totals = [np.frombuffer(memory, np.int64, 1, _LINE * index + 8) for index in range(depth)]
        self._memory = memory  # the words are addresses only

    @staticmethod
    def nbytes(depth: int, batch: int, shape: Sequence[int], dtype: Any) -> int:
        """Returns how much memory they take."""
        return depth * (_LINE + _message_bytes(batch, shape, dtype))


def _message_bytes(batch: int, shape: Sequence[int], dtype: Any) -> int:
    nbytes: int = batch * math.prod(shape) * np.dtype(dtype).itemsize
    return -(-nbytes // _LINE) * _LINE


class SharedOutlet:
    """The sender's end. Implements `psgd.parallel.stages.links.Outlet`."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self._next = slots, 1

    def send(self, message: NDArray[Any], total: int) -> bool:
        """Copies it to a free slot; False where there is none."""
        for index, word in enumerate(self._slots.words):
            if words.load(word) == 0:
                self._slots.arrays[index][: len(message)] = message
                self._slots.totals[index][0] = total
                words.store(word, self._next)
                self._next += 1
                return True
        return False

    def close(self) -> None:
        """The memory goes with its last user."""


class SharedInlet:
    """The receiver's end. Implements `psgd.parallel.stages.links.Inlet`."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self._next, self._found = slots, 1, 0

    def arrived(self) -> bool:
        """Whether the next message is in a slot."""
        for index, word in enumerate(self._slots.words):
            if words.load(word) == self._next:
                self._found = index
                return True
        return False

    def take(self, samples: int) -> tuple[int, NDArray[Any], int]:
        """Returns the slot, the message and its total, after `arrived`."""
        self._next += 1
        return self._found, self._slots.arrays[self._found][:samples], int(self._slots.totals[self._found][0])

    def release(self, slot: int) -> None:
        """The message is not needed any more."""
        words.store(self._slots.words[slot], 0)

    def close(self) -> None:
        """The memory goes with its last user."""
