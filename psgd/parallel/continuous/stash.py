"""Weights of earlier steps, kept while passes under way need them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]


class Stash:
    """The versions of one rank's parameters during a run that does not flush.

    The newest version is the caller's vector, which steps change in place. `keep` copies it before such a step, if a
    pass still needs it; copies are used again once nobody does.

    Args:
        params: the newest version.
        used: for each microbatch, after how many steps of the run its passes use the weights; never decreasing.
        apart: passes use copies of the newest version too, since they refer to its memory until their backward pass.

    Attributes:
        steps: taken so far.
        most: versions that were alive at once, the newest included.
    """

    def __init__(self, params: Vector, used: Sequence[int], apart: bool = False) -> None:
        self.steps, self.most = 0, 1
        self._params, self._used, self._apart = params, used, apart
        self._last = {version: microbatch for microbatch, version in enumerate(used)}
        self._kept: dict[int, Vector] = {}
        self._free: list[Vector] = []

    def weights(self, microbatch: int) -> Vector:
        """Returns the parameters that this microbatch's passes use; read, never written."""
        version = self._used[microbatch]
        if self._apart and version not in self._kept:
            self._copy()
        return self._params if version == self.steps and not self._apart else self._kept[version]

    def keep(self, microbatch: int) -> None:
        """To be called before a step changes the newest version.

        Args:
            microbatch: the last one whose backward pass is done: those up to it need nothing any more.
        """
        for version in [each for each in self._kept if self._last[each] <= microbatch]:
            self._free.append(self._kept.pop(version))
        if self._last.get(self.steps, -1) > microbatch and self.steps not in self._kept:
            self._copy()
        self.steps += 1
        self.most = max(self.most, 1 + len(self._kept))

    def _copy(self) -> None:
        """Keeps the newest version."""
        copy = self._free.pop() if self._free else np.empty_like(self._params)
        copy[...] = self._params
        self._kept[self.steps] = copy
        self.most = max(self.most, 1 + len(self._kept))
