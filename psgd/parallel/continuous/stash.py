"""Weights of earlier steps, kept while passes under way need them."""

import heapq
from collections.abc import Sequence

import numpy as np

from psgd.kernels.array import Array


class Copies:
    """Memory for older versions of one vector, which outlives a run: passes on a GPU are recorded for addresses.

    The free one with the lowest number is taken first. So runs that begin alike use the same memory for the same
    microbatches, and find the passes that were recorded before.
    """

    def __init__(self) -> None:
        self._vectors: list[Array] = []
        self._free: list[int] = []  # a heap of their numbers

    def take(self, source: Array) -> int:
        """Copies a vector, where it lies; returns the number of the copy.

        On a GPU this is put on the current stream, as all passes and steps are: behind the passes that read what the
        memory held before, and ahead of the step that changes the source.
        """
        if not self._free:
            self._vectors.append(np.empty_like(source))
            self._free.append(len(self._vectors) - 1)
        number = heapq.heappop(self._free)
        self._vectors[number][...] = source
        return number

    def of(self, number: int) -> Array:
        """The copy of that number, always the same array."""
        return self._vectors[number]

    def give_back(self, number: int) -> None:
        """No pass that is started from now on reads it."""
        heapq.heappush(self._free, number)


class Stash:
    """The versions of one rank's parameters during a run that does not flush.

    The newest version is the caller's vector, which steps change in place. `keep` copies it before such a step, if a
    pass still needs it; copies are used again once nobody does.

    Args:
        params: the newest version.
        used: for each microbatch, after how many steps of the run its passes use the weights; never decreasing.
        apart: passes use copies of the newest version too, since they refer to its memory until their backward pass.
        copies: where older versions lie; None makes memory for them.

    Attributes:
        steps: taken so far.
        most: versions that were alive at once, the newest included.
    """

    def __init__(self, params: Array, used: Sequence[int], apart: bool = False, copies: Copies | None = None) -> None:
        self.steps, self.most = 0, 1
        self._params, self._used, self._apart = params, used, apart
        self._last = {version: microbatch for microbatch, version in enumerate(used)}
        self._copies = Copies() if copies is None else copies
        self._kept: dict[int, int] = {}  # by version the number of its copy

    def weights(self, microbatch: int) -> Array:
        """Returns the parameters that this microbatch's passes use; read, never written."""
        version = self._used[microbatch]
        if self._apart and version not in self._kept:
            self._copy()
        newest = version == self.steps and not self._apart
        return self._params if newest else self._copies.of(self._kept[version])

    def keep(self, microbatch: int) -> None:
        """To be called before a step changes the newest version.

        Args:
            microbatch: the last one whose backward pass is done: those up to it need nothing any more.
        """
        for version in [each for each in self._kept if self._last[each] <= microbatch]:
            self._copies.give_back(self._kept.pop(version))
        if self._last.get(self.steps, -1) > microbatch and self.steps not in self._kept:
            self._copy()
        self.steps += 1
        self.most = max(self.most, 1 + len(self._kept))

    def end(self) -> None:
        """The run is over: no version is needed but the newest."""
        while self._kept:
            self._copies.give_back(self._kept.popitem()[1])

    def _copy(self) -> None:
        """Keeps the newest version."""
        self._kept[self.steps] = self._copies.take(self._params)
        self.most = max(self.most, 1 + len(self._kept))
