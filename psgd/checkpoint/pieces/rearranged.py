"""A checkpoint read through another layout: by a run whose model is cut otherwise, or not at all.

Everything that is a vector of the saved layouts (parameters, the optimizer's state) is put together from the parts of
parameters that the target has; one parameter at a time is read. Other numbers are alike in all pieces: the first one's
are taken.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import extra, shards
from psgd.checkpoint.folder import Checkpoint
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.checkpoint.pieces.overlaps import Overlap, overlaps
from psgd.checkpoint.shards import ShardFile
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.kernels.notice import say
from psgd.nn.layout import Layout
from psgd.runtime.jsonable import JSON, section, wholes

ALIKE = ("version", "samples", "steps")
"""Facts that all pieces of one checkpoint have alike."""


class OnePiece(Checkpoint):
    """One piece of a checkpoint, read as if there were no others: by the same piece of a run that is cut alike."""

    piece: str

    @classmethod
    def of(cls, found: Checkpoint, piece: str) -> "OnePiece":
        made = cls(found.path, _alone(found.manifest, piece, found.manifest.pieces[piece]))
        made.piece = piece
        return made

    def state(self, name: str) -> State:
        shard = self.manifest.shard(name)
        return _finite(self, shards.read(self.path, replace(shard, name=self.piece + name)), name)


class Rearranged(Checkpoint):
    """A whole checkpoint read through the layout of one rank. Several servers are one, `server-0`, with all."""

    source: Manifest
    target: Layout
    pieces: dict[str, Layout]
    parts: list[Overlap]

    @classmethod
    def onto(cls, found: Checkpoint, target: Layout) -> "Rearranged":
        """A checkpoint read through `target`.

        Raises:
            CheckpointError: it has no layout, or not all that the target needs.
        """
        whole = found.manifest
        if whole.layout is None:
            raise CheckpointError(
                f"{found.path}: saved without the names of its parameters: it cannot be cut otherwise"
            )
        pieces = whole.pieces or {"": whole.layout}
        shown = _alone(whole, next(iter(pieces)), target)
        if served := [shard for shard in shown.shards if shard.name.startswith("server-")][:1]:
            workers = [shard for shard in shown.shards if not shard.name.startswith("server-")]
            shown = replace(shown, shards=(*served, *workers), run=shown.run | {"servers": 1})
        made = cls(found.path, shown)
        made.source, made.target, made.pieces = whole, target, pieces
        made.parts = overlaps(target, pieces, dict(whole.layout.tied))
        return made

    def state(self, name: str) -> State:
        role, _, index = name.partition("-")
        sources = {piece: _Source(self, piece, role, index, layout) for piece, layout in self.pieces.items()}
        first = next(iter(sources.values()))
        for source in sources.values():
            for fact in ALIKE:
                if source.facts.get(fact) != first.facts.get(fact):
                    raise CheckpointError(
                        f"{self.path}: {fact} is {first.facts.get(fact)} in {first.name} and "
                        f"{source.facts.get(fact)} in {source.name}"
                    )
        # Small arrays may have a piece's size by chance; not that of every piece.
        kinds = {n: kind for n, kind in first.vectors.items() if all(n in each.vectors for each in sources.values())}
        if odd := [n for n in kinds if any(each.vectors[n] != kinds[n] for each in sources.values())]:
            raise CheckpointError(f"{self.path}: {odd[0]} has another dtype in each piece")
        tensors = {vector: np.zeros(self.target.size, kind) for vector, kind in kinds.items()}
        views = {vector: self.target.views(array) for vector, array in tensors.items()}
        for part in self.parts:
            for vector in tensors:
                saved = sources[part.piece].parameter(vector, part.source.offset, part.source.stop)
                views[vector][part.target.name][part.filled] = saved.reshape(part.source.shape)[part.taken]
        facts = dict(first.facts)
        if "range" in facts:
            facts |= {"range": [0, self.target.size, self.target.size], "cut": sorted(tensors)}
        if "loop" in facts:
            facts["loop"] = section(facts, "loop") | {"extra": {}, "scalars": []}
        return _finite(self, State(tensors | first.others(tensors), facts), name)

    def tell(self, part: ModelPart | None) -> None:
        """Says that the model was cut otherwise, and what is lost by that. For rank 0."""
        was = ", ".join(self.source.pieces) or "the whole model"
        now = "the whole model" if part is None else ", ".join(part.pieces)
        say(f"resuming what was saved as {was} as {now}")
        names = [f"{next(iter(self.pieces))}{name}" for name in self.manifest.names("worker")[:1]]
        if any(extra.is_in(shards.outline(self.path, self.source.shard(name))) for name in names):
            say("warning: resume: what each worker had in ps.extra is not restored")


class _Source:
    """The shards of one piece that make its state of one name: one worker's, or all servers'."""

    def __init__(self, found: Rearranged, piece: str, role: str, index: str, layout: Layout) -> None:
        self._found, self._size = found, layout.size
        names = found.source.names(role, piece) if role == "server" else [f"{piece}{role}-{index}"]
        self.name = names[0]
        self._ranges: list[tuple[ShardFile, range]] = []
        self.vectors: dict[str, Any] = {}
        self._names: list[str] = []
        for name in names:
            shard = found.source.shard(name)
            header = shards.outline(found.path, shard)
            start, stop, of = (
                wholes(header.facts, "range", 3) if "range" in header.facts else (0, self._size, self._size)
            )
            if of != self._size or not 0 <= start <= stop <= of:
                raise CheckpointError(f"{found.path}: {name} has elements {start} to {stop} of {of}, not {self._size}")
            self._ranges.append((shard, range(start, stop)))
            if name == names[0]:
                self.facts: dict[str, JSON] = header.facts
                self._names = list(header.tensors)
                self.vectors = {
                    name: tensor.dtype
                    for name, tensor in header.tensors.items()
                    if tensor.shape == (stop - start,) and not name.startswith("extra.")
                }

    def parameter(self, vector: str, start: int, stop: int) -> NDArray[Any]:
        """Elements of a vector, from whichever shards have them."""
        pieces = []
        at = start
        for shard, place in sorted(self._ranges, key=lambda each: each[1].start):
            first, last = max(at, place.start), min(stop, place.stop)
            if first == at and first < last:
                pieces.append(shards.elements(self._found.path, shard, vector, first - place.start, last - place.start))
                at = last
        if at != stop:
            raise CheckpointError(f"{self._found.path}: {self.name}: {vector} ends at element {at} of {self._size}")
        return np.concatenate(pieces)

    def others(self, vectors: Collection[str]) -> dict[str, NDArray[Any]]:
        """Tensors that are no vectors of the layout, nor the program's own."""
        names = [name for name in self._names if name not in vectors and not name.startswith("extra.")]
        if not names:
            return {}
        state = shards.read(self._found.path, self._ranges[0][0])
        return {name: state.tensors[name] for name in names}


def for_run(found: Checkpoint, part: ModelPart | None, layout: Layout | None) -> Checkpoint:
    """A checkpoint as a rank of this run reads it.

    Args:
        found: what there is.
        part: this rank's part of the model; None where it has all.
        layout: of this rank's vector, where it is known.

    Raises:
        CheckpointError: it does not have what the rank needs.
    """
    pieces = found.manifest.pieces
    if part is None and not pieces:
        return found
    if part is not None and _same(pieces, part.pieces):
        return OnePiece.of(found, part.name)
    target = layout if part is None else part.layout
    if target is None:
        raise CheckpointError(f"{found.path}: saved in pieces: to resume it as a whole needs the layout (layout=)")
    if found.manifest.run.get("compress") not in (None, "None", "none"):
        raise CheckpointError(
            f"{found.path}: saved with compress, whose residuals belong to the cut of the model: resume it with the "
            "same mesh and the same cuts"
        )
    return Rearranged.onto(found, target)


def joined(found: Checkpoint) -> Checkpoint:
    """A checkpoint in pieces as one of the whole model, for who reads its weights; another one as it is."""
    if not found.manifest.pieces or found.manifest.layout is None:
        return found
    return Rearranged.onto(found, found.manifest.layout)


def _same(one: Mapping[str, Layout], other: Mapping[str, Layout]) -> bool:
    return one.keys() == other.keys() and all(_plain(one[name]) == _plain(other[name]) for name in one)


def _plain(layout: Layout) -> JSON:
    """Without what PyTorch has otherwise."""
    found: JSON = json.loads(layout.to_json())["parameters"]
    return found


def _alone(whole: Manifest, piece: str, layout: Layout) -> Manifest:
    """The manifest as if this piece were the whole model."""
    names: Sequence[str] = [*whole.names("server", piece), *whole.names("worker", piece)]
    own = tuple(replace(whole.shard(name), name=name.removeprefix(piece)) for name in names)
    return replace(whole, layout=layout, pieces={}, shards=own)


def _finite(found: Checkpoint, state: State, name: str) -> State:
    if not state.finite:
        raise CheckpointError(f"{found.path}: NaN or infinity in the parameters of {name}")
    return state
