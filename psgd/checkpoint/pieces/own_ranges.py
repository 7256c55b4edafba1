"""What each of several workers keeps of vectors that they share: saved by each, and read by whoever needs which part.

A worker's own vector is its ranges of the whole one, one after the other. A checkpoint says whose file has which
ranges, so that another number of workers, other units or workers that have everything find what they need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore
from psgd.checkpoint.pieces.lazy_tensors import LazyTensors
from psgd.checkpoint.state import State
from psgd.runtime.device_vectors import fill, on_host


@dataclass
class OwnRanges:
    """Vectors of which each worker saves its ranges. Implements `psgd.checkpoint.declared.Item`.

    Attributes:
        arrays: by name, on the host or a GPU: a worker's own vector, or the whole one. Of a whole one each saves its
            ranges; all of it is restored on worker 0, from which the others get it.
        ranges: of this worker in the whole vector, ascending; some may be empty. All workers' cover it.
        of: elements of the whole vector.
    """

    arrays: Mapping[str, NDArray[Any]]
    ranges: Sequence[range]
    of: int

    def save(self, state: State, worker: int) -> None:
        size = sum(map(len, self.ranges))
        for name, array in self.arrays.items():
            state.tensors[name] = array if array.size == size else self._cut(array)
        state.facts["ranges"] = [[each.start, each.stop] for each in self.ranges if each]
        state.facts |= {"of": self.of, "cut": sorted(self.arrays)}

    def restore(self, own: State | None, states: Sequence[State], worker: int) -> list[str]:
        size = sum(map(len, self.ranges))
        one = next(iter(self.arrays))
        like = {one: self.arrays[one]}
        has_all = own is not None and one in own.tensors
        found = own if has_all and own is not None else restore.first(like, states)
        for name, array in self.arrays.items():
            if array.size == size:
                fill(array, restore.fitting(name, array, self._part(found, name)))
            elif worker == 0:
                fill(array, restore.fitting(name, array, found.tensors.get(name)))
        return []

    def _part(self, found: State, name: str) -> NDArray[Any] | None:
        tensors = found.tensors
        if name not in tensors:
            return None
        if isinstance(tensors, LazyTensors):
            return tensors.part(name, self.ranges)
        return self._cut(tensors[name])

    def _cut(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([on_host(array[each.start : each.stop]) for each in self.ranges])
