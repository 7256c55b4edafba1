"""Each layer's part of the flat vector, and a stage bound to memory that has a layer's parts side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from psgd.kernels.array import Array, array_module
from psgd.nn.stage import Stage


@dataclass(frozen=True)
class LayerParts:
    """What one layer with parameters needs of the vector.

    Attributes:
        index: of the layer in the stage.
        own: what it completes in backward, padding included; empty where all its parameters are tied to others'.
        tied: places of parameters of other layers that it uses too, in the order of its specs.
    """

    index: int
    own: range
    tied: tuple[range, ...]

    @property
    def parts(self) -> tuple[range, ...]:
        """All of them, in the order in which they lie side by side."""
        return (self.own, *self.tied)

    @property
    def size(self) -> int:
        """Elements of all of them."""
        return sum(map(len, self.parts))


def parts(stage: Stage) -> list[LayerParts]:
    """Returns them for each layer with parameters, in order. Together the own ones are the whole vector."""
    align, layout = stage.layout.align, stage.layout
    tied = dict(layout.tied)
    places = {p.name: range(p.offset, -(-p.stop // align) * align) for p in layout.parameters}
    found = []
    for index, (step, own) in enumerate(zip(stage.steps, stage.ready_ranges, strict=True)):
        if step.specs:
            others = tuple(places[tied[spec.name]] for spec in step.specs if spec.name in tied)
            others = tuple(each for each in others if each.start not in own)
            found.append(LayerParts(index, own, others))
    return found


def pieces(part: range, most: int) -> list[range]:
    """Returns a part of the vector in pieces of at most so many elements, in order; none of an empty one."""
    return [range(start, min(start + most, part.stop)) for start in range(part.start, part.stop, most)]


def bind(stage: Stage, layers: Sequence[LayerParts], params: Sequence[Array], grads: Sequence[Array]) -> None:
    """Uses a vector of its own for each layer's parameters and for its gradient from now on.

    Args:
        stage: on the device of the arrays from now on.
        layers: as `parts` gives them.
        params: for each of them at least `size` elements, its parts side by side.
        grads: for each of them at least its own part's elements. Of tied parameters the stage has gradients of its own.
    """
    places = {p.name: p for p in stage.layout.parameters}
    same = dict(stage.layout.tied)
    mine: dict[str, Array] = {}
    gradients: dict[str, Array] = {}
    gaps: list[tuple[int, Array]] = []
    for layer, vector, gradient in zip(layers, params, grads, strict=True):
        for spec in stage.steps[layer.index].specs:
            place = places[same.get(spec.name, spec.name)]
            start = _where(layer, place.offset)
            mine[spec.name] = vector[start : start + place.size].reshape(spec.shape)
            gradients[spec.name] = mine[spec.name]  # of another name of a parameter; the stage has a gradient for it
            if spec.name not in same:
                here = place.offset - layer.own.start
                gradients[spec.name] = gradient[here : here + place.size].reshape(spec.shape)
        for gap in stage.layout.padding:
            if gap.start in layer.own:
                here = gap.start - layer.own.start
                gaps.append((gap.start, gradient[here : here + len(gap)]))
    stage.bind_views(array_module(params[0]), mine, gradients, gaps)


def _where(layer: LayerParts, offset: int) -> int:
    """Where an element of the vector lies among a layer's parts side by side."""
    before = 0
    for part in layer.parts:
        if offset in part:
            return before + offset - part.start
        before += len(part)
    raise AssertionError(offset)
