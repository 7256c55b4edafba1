"""The vectors of one piece on the disk: in one rank's file, or cut into ranges that lie in the files of several."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import shards
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.shards import ShardFile
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.runtime.jsonable import JSON, texts, wholes


class Stored:
    """What one rank of a piece has saved, and the vectors of which it has all or a part.

    Where the piece's workers share the vectors, its first one stands for all of them, and the others have none.

    Args:
        folder: of the checkpoint.
        manifest: as it was written.
        piece: its name, "" where the model is whole.
        name: of the rank in it, as `worker-3`. `server-0` has what all servers have.
        size: elements of the vectors; None: of the tensor `params`, where there is one.

    Attributes:
        name: of the file.
        facts: that the rank has saved.
        kinds: the dtype of each vector, by name.

    Raises:
        CheckpointError: files that do not fit each other.
    """

    def __init__(self, folder: Path, manifest: Manifest, piece: str, name: str, size: int | None) -> None:
        self._folder = folder
        role = name.partition("-")[0]
        self._own = manifest.shard(piece + name)
        self.name = self._own.name
        header = shards.outline(folder, self._own)
        self.facts: dict[str, JSON] = header.facts
        everyone = [manifest.shard(each) for each in manifest.names(role, piece)]
        sharing = [shard for shard in everyone if shard.ranges is not None]
        self._places: list[tuple[range, ShardFile, int]]
        if sharing:
            self._places, size = _shared(sharing, size)
        elif role == "server":
            self._places = [self._served(shard, size) for shard in everyone]
        else:
            found = header.tensors.get("params")
            size = size if size is not None or found is None or found.ndim != 1 else found.size
            self._places = [(range(size or 0), self._own, 0)]
        self._places.sort(key=lambda place: (place[0].start, place[0].stop))
        self.size = 0 if size is None else size
        held = sum(len(place) for place, shard, _ in self._places if shard == self._own)
        if "cut" in self.facts:
            names = set(texts(self.facts, "cut"))
        else:
            names = {each for each, tensor in header.tensors.items() if size is not None and tensor.shape == (held,)}
        vectors = {
            each: tensor for each, tensor in header.tensors.items() if each in names and not each.startswith("extra.")
        }
        if odd := [each for each, tensor in vectors.items() if tensor.shape != (held,)]:
            raise CheckpointError(f"{folder}: {self.name}: expected {held} elements of {odd[0]}")
        self._others = [each for each in header.tensors if each not in vectors and not each.startswith("extra.")]
        self._extra = [each for each in header.tensors if each.startswith("extra.")]
        stands_for_all = not sharing or self._own == everyone[0]
        kinds: dict[str, Any] = {each: tensor.dtype for each, tensor in vectors.items()}
        self.kinds: Mapping[str, Any] = kinds if stands_for_all else {}

    def read(self, name: str, ranges: Sequence[range] | None) -> NDArray[Any]:
        """Implements `psgd.checkpoint.pieces.lazy_tensors.VectorReader`."""
        parts = [np.zeros(0, self.kinds[name])]
        for wanted in [range(self.size)] if ranges is None else ranges:
            at = wanted.start
            for place, shard, offset in self._places:
                first, last = max(at, place.start), min(wanted.stop, place.stop)
                if first == at and first < last:
                    start = offset + first - place.start
                    part = shards.elements(self._folder, shard, name, start, start + last - first)
                    if part.shape != (last - first,) or part.dtype != self.kinds[name]:
                        raise CheckpointError(
                            f"{self._folder}: {shard.name}: expected a vector {name} of {self.kinds[name]}, "
                            f"got {part.dtype} of shape {part.shape}"
                        )
                    parts.append(part)
                    at = last
            if at != max(wanted.start, wanted.stop):
                raise CheckpointError(f"{self._folder}: {self.name}: {name} ends at element {at} of {self.size}")
        return np.concatenate(parts)

    def others(self, extra: bool) -> Mapping[str, NDArray[Any]]:
        """Tensors that are no such vectors; with `extra` also the program's own."""
        names = [*self._others, *(self._extra if extra else ())]
        return shards.read(self._folder, self._own, names).tensors if names else {}

    def _served(self, shard: ShardFile, size: int | None) -> tuple[range, ShardFile, int]:
        facts = shards.outline(self._folder, shard).facts
        start, stop, of = wholes(facts, "range", 3) if "range" in facts else (0, size or 0, size or 0)
        if of != size or not 0 <= start <= stop <= of:
            raise CheckpointError(f"{self._folder}: {shard.name} has elements {start} to {stop} of {of}, not {size}")
        return range(start, stop), shard, 0


def _shared(sharing: Sequence[ShardFile], size: int | None) -> tuple[list[tuple[range, ShardFile, int]], int]:
    """Where each range lies: in which file, from which of its elements on; and the size of the whole."""
    places = []
    for shard in sharing:
        offset = 0
        for each in shard.ranges or ():
            places.append((each, shard, offset))
            offset += len(each)
    of = sharing[0].of
    at = 0
    for each, shard, _ in sorted(places, key=lambda place: place[0].start):
        if each.start != at or shard.of != of:
            raise CheckpointError(f"{shard.name} has elements {each.start} to {each.stop} of {shard.of} after {at}")
        at = each.stop
    if at != of or size not in (None, of):
        raise CheckpointError(f"the shards have {at} elements of {of}, expected {size or of}")
    return places, of


def facts_without_ranges(facts: dict[str, JSON]) -> dict[str, JSON]:
    """Facts of a state whose vectors are read as whole ones."""
    return {name: fact for name, fact in facts.items() if name not in ("ranges", "of", "cut")}


def without_vectors(stored: Stored) -> State:
    """A rank's state but for the vectors."""
    return State(dict(stored.others(extra=True)), facts_without_ranges(stored.facts))
