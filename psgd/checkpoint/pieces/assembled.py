"""Vectors of one layout, put together from those of saved pieces: a parameter at a time, and only what is asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.pieces.overlaps import Overlap
from psgd.checkpoint.pieces.stored import Stored
from psgd.nn.layout import Layout, Parameter


class Assembled:
    """Implements `psgd.checkpoint.pieces.lazy_tensors.VectorReader`; padding is 0.

    Args:
        target: layout of the vectors.
        parts: what they are made of, each element once.
        sources: the pieces' vectors, by piece.
        kinds: the dtype of each vector, by name; all pieces have them.
    """

    def __init__(
        self, target: Layout, parts: Sequence[Overlap], sources: Mapping[str, Stored], kinds: Mapping[str, Any]
    ) -> None:
        self.kinds = kinds
        self._size, self._sources = target.size, sources
        self._parts: dict[Parameter, list[Overlap]] = {}
        for part in parts:
            self._parts.setdefault(part.target, []).append(part)

    def read(self, name: str, ranges: Sequence[range] | None) -> NDArray[Any]:
        wanted = [range(self._size)] if ranges is None else ranges
        found = np.zeros(sum(map(len, wanted)), self.kinds[name])
        for parameter, parts in self._parts.items():
            values = None
            at = 0
            for each in wanted:
                first, last = max(each.start, parameter.offset), min(each.stop, parameter.stop)
                if first < last:
                    values = self._parameter(name, parameter, parts) if values is None else values
                    into = at + first - each.start
                    found[into : into + last - first] = values[first - parameter.offset : last - parameter.offset]
                at += len(each)
        return found

    def _parameter(self, name: str, parameter: Parameter, parts: Sequence[Overlap]) -> NDArray[Any]:
        values = np.zeros(parameter.shape, self.kinds[name])
        for part in parts:
            saved = self._sources[part.piece].read(name, [range(part.source.offset, part.source.stop)])
            values[part.filled] = saved.reshape(part.source.shape)[part.taken]
        return values.reshape(-1)
