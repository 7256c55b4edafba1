"""A checkpoint read through another layout: by a run whose model is cut otherwise, or not at all.

Everything that is a vector of the saved layouts (parameters, the optimizer's state) is put together from the parts of
parameters that the target has; one parameter at a time is read. Other numbers are alike in all pieces: the first one's
are taken.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from psgd.checkpoint import extra, shards
from psgd.checkpoint.folder import Checkpoint
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.pieces.assembled import Assembled
from psgd.checkpoint.pieces.lazy_tensors import LazyTensors
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.checkpoint.pieces.overlaps import Overlap, overlaps
from psgd.checkpoint.pieces.stored import Stored, facts_without_ranges, without_vectors
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.kernels.notice import say
from psgd.nn.layout import Layout
from psgd.runtime.jsonable import JSON, section

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


class Shared(Checkpoint):
    """One piece, or the only one, of which workers share vectors: in the saved run, in this one, or in both.

    The first worker's state has all of them whole; what is read of them is up to the reader.
    """

    source: Manifest
    piece: str

    @classmethod
    def of(cls, found: Checkpoint, piece: str) -> "Shared":
        whole = found.manifest
        made = cls(found.path, _alone(whole, piece, whole.pieces[piece]) if piece else whole)
        made.source, made.piece = whole, piece
        return made

    def state(self, name: str) -> State:
        layout = self.manifest.layout
        stored = Stored(self.path, self.source, self.piece, name, None if layout is None else layout.size)
        state = without_vectors(stored)
        state.tensors = LazyTensors(state.tensors, stored, f"{self.path}: {stored.name}")
        return state


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
        sources = {
            piece: Stored(self.path, self.source, piece, name, layout.size) for piece, layout in self.pieces.items()
        }
        first = next(iter(sources.values()))
        for source in sources.values():
            for fact in ALIKE:
                if source.facts.get(fact) != first.facts.get(fact):
                    raise CheckpointError(
                        f"{self.path}: {fact} is {first.facts.get(fact)} in {first.name} and "
                        f"{source.facts.get(fact)} in {source.name}"
                    )
        # Small arrays may have a piece's size by chance; not that of every piece.
        kinds = {n: kind for n, kind in first.kinds.items() if all(n in each.kinds for each in sources.values())}
        if odd := [n for n in kinds if any(each.kinds[n] != kinds[n] for each in sources.values())]:
            raise CheckpointError(f"{self.path}: {odd[0]} has another dtype in each piece")
        others = dict(first.others(extra=False)) | {n: first.read(n, None) for n in first.kinds if n not in kinds}
        facts = facts_without_ranges(first.facts)
        if "range" in facts:
            facts |= {"range": [0, self.target.size, self.target.size], "cut": sorted(kinds)}
        if "loop" in facts:
            facts["loop"] = section(facts, "loop") | {"extra": {}, "scalars": []}
        tensors = LazyTensors(others, Assembled(self.target, self.parts, sources, kinds), f"{self.path}: {name}")
        return State(tensors, facts)

    def tell(self, part: ModelPart | None) -> None:
        """Says that the model was cut otherwise, and what is lost by that. For rank 0."""
        was = ", ".join(self.source.pieces) or "the whole model"
        now = "the whole model" if part is None else ", ".join(part.pieces)
        if was != now:  # else only its parameters lie in another order
            say(f"resuming what was saved as {was} as {now}")
        names = [f"{next(iter(self.pieces))}{name}" for name in self.manifest.names("worker")[:1]]
        if any(extra.is_in(shards.outline(self.path, self.source.shard(name))) for name in names):
            say("warning: resume: what each worker had in ps.extra is not restored")


def for_run(found: Checkpoint, part: ModelPart | None, layout: Layout | None, shares: bool = False) -> Checkpoint:
    """A checkpoint as a rank of this run reads it.

    Args:
        found: what there is.
        part: this rank's part of the model; None where it has all.
        layout: of this rank's vector, where it is known.
        shares: this run's workers share vectors, so that each reads its own ranges alone.

    Raises:
        CheckpointError: it does not have what the rank needs.
    """
    pieces = found.manifest.pieces
    shared = shares or found.manifest.shared
    if part is None and not pieces:
        saved = found.manifest.layout
        if shared and saved is not None and layout is not None and _plain(saved) != _plain(layout):
            return Rearranged.onto(found, layout)
        return Shared.of(found, "") if shared else found
    if part is not None and _same(pieces, part.pieces):
        return Shared.of(found, part.name) if shared else OnePiece.of(found, part.name)
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
    """A checkpoint in pieces or ranges as one of the whole model, for who reads its weights; another one as it is."""
    if not found.manifest.pieces or found.manifest.layout is None:
        return Shared.of(found, "") if found.manifest.shared else found
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
