"""Tensors of a saved state of which the large ones are read when they are asked for, or only in part."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import WEIGHTS
from psgd.kernels.errors import CheckpointError


class VectorReader(Protocol):
    """Vectors on the disk, all of one length.

    Attributes:
        kinds: the dtype of each, by name.
    """

    kinds: Mapping[str, Any]

    def read(self, name: str, ranges: Sequence[range] | None) -> NDArray[Any]:
        """A vector's elements in these ranges, which ascend, one after the other; None: all. Others are not read.

        Raises:
            CheckpointError: they are not there.
        """


class LazyTensors(MutableMapping[str, NDArray[Any]]):
    """Some tensors, and vectors that each use reads anew.

    Args:
        tensors: by name.
        vectors: the others.
        where: for messages.
    """

    def __init__(self, tensors: Mapping[str, NDArray[Any]], vectors: VectorReader, where: str) -> None:
        self._tensors, self._vectors, self._where = dict(tensors), vectors, where

    def __getitem__(self, name: str) -> NDArray[Any]:
        found = self._tensors.get(name)
        return self.part(name, None) if found is None else found

    def __setitem__(self, name: str, tensor: NDArray[Any]) -> None:
        self._tensors[name] = tensor

    def __delitem__(self, name: str) -> None:
        del self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self._vectors.kinds

    def __iter__(self) -> Iterator[str]:
        return iter([*self._tensors, *(name for name in self._vectors.kinds if name not in self._tensors)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def part(self, name: str, ranges: Sequence[range] | None) -> NDArray[Any]:
        """As `VectorReader.read`. Raises CheckpointError, too, where weights are not finite."""
        if name not in self._vectors.kinds:
            raise KeyError(name)
        found = self._vectors.read(name, ranges)
        if name in WEIGHTS and not bool(np.isfinite(found).all()):
            raise CheckpointError(f"{self._where}: NaN or infinity in the parameters")
        return found
