"""What of saved pieces a vector of another layout is made of: parameter by parameter, each element once."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from psgd.kernels.errors import CheckpointError
from psgd.nn.layout import Layout, Parameter


class Overlap(NamedTuple):
    """A part of a parameter that a piece has and a target needs.

    Attributes:
        piece: its name.
        source: the parameter there.
        taken: what of `source`, as it lies there, is copied.
        target: the parameter in the target.
        filled: where in `target` it goes.
    """

    piece: str
    source: Parameter
    taken: tuple[slice, ...]
    target: Parameter
    filled: tuple[slice, ...]


def overlaps(target: Layout, pieces: Mapping[str, Layout], tied: Mapping[str, str]) -> list[Overlap]:
    """All parts that a target needs. Of what several pieces have alike, the first piece's is taken.

    Args:
        target: of the vector that is filled.
        pieces: by name, what there is.
        tied: other names of parameters in the whole model, each with the parameter.

    Raises:
        CheckpointError: nobody has a parameter, it had another shape, or some of its elements are missing.
    """
    there: dict[str, list[tuple[str, Parameter]]] = {}
    for piece, layout in pieces.items():
        for parameter in layout.parameters:
            name = tied.get(parameter.name, parameter.name)
            there.setdefault(name, []).append((piece, parameter))
    found = []
    for parameter in target.parameters:
        name = tied.get(parameter.name, parameter.name)
        seen: set[tuple[object, ...]] = set()
        covered = 0
        for piece, source in there.get(name, ()):
            if source.global_shape != parameter.global_shape:
                raise CheckpointError(
                    f"{name}: expected shape {parameter.global_shape}, the checkpoint has {source.global_shape}"
                )
            if (source.start, source.shape) in seen:
                continue
            seen.add((source.start, source.shape))
            if (common := _common(source, parameter)) is not None:
                found.append(Overlap(piece, source, common[0], parameter, common[1]))
                covered += math.prod(part.stop - part.start for part in common[1])
        if covered != parameter.size:
            raise CheckpointError(f"{name}: expected {parameter.size} elements, the checkpoint has {covered} of them")
    return found


def _common(source: Parameter, target: Parameter) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """The elements that both have, as they lie in each; None where there are none."""
    taken, filled = [], []
    for begin, extent, start, length in zip(source.start, source.shape, target.start, target.shape, strict=True):
        first, last = max(begin, start), min(begin + extent, start + length)
        if first >= last:
            return None
        taken.append(slice(first - begin, last - begin))
        filled.append(slice(first - start, last - start))
    return tuple(taken), tuple(filled)
