"""Which rank has which part of a model's parameters, and who counts for those that several have."""

import math

from psgd.kernels.errors import AgreedUsageError
from psgd.nn.layout import Layout

Part = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Which parameter of the whole, where in it the part begins along each axis, its shape."""


def placed(layout: Layout, whole: Layout) -> list[Part]:
    """Each parameter of a vector as a part of the whole model's; -1 where that has none of its name."""
    numbers = {parameter.name: number for number, parameter in enumerate(whole.parameters)}
    shapes = {parameter.name: parameter.global_shape for parameter in whole.parameters}
    same = dict(whole.tied)
    found: list[Part] = []
    for parameter in layout.parameters:
        name = same.get(parameter.name, parameter.name)
        fits = shapes.get(name) == parameter.global_shape
        found.append((numbers[name] if fits else -1, parameter.start, parameter.shape))
    return found


def first_owners(everyone: list[list[Part]], whole: Layout) -> list[list[Part]]:
    """By rank the parts that it counts: of those that several have, the first rank's.

    Raises:
        AgreedUsageError: a part that is not of the whole model, two that overlap, or elements that nobody has.
    """
    taken: dict[Part, int] = {}
    for rank, parts in enumerate(everyone):
        for part in parts:
            if part[0] < 0:
                raise AgreedUsageError(f"parts of a model: rank {rank} has a parameter that the whole model has not")
            taken.setdefault(part, rank)
    for number, parameter in enumerate(whole.parameters):
        there = [part for part in taken if part[0] == number]
        for at, one in enumerate(there):
            if any(_overlap(one, other) for other in there[:at]):
                raise AgreedUsageError(f"parts of a model: two parts of {parameter.name} overlap and are not the same")
        if (held := sum(math.prod(part[2]) for part in there)) != parameter.size:
            raise AgreedUsageError(
                f"parts of a model: expected the {parameter.size} elements of {parameter.name}, the ranks have {held}"
            )
    return [[part for part in parts if taken[part] == rank] for rank, parts in enumerate(_distinct(everyone))]


def _distinct(everyone: list[list[Part]]) -> list[list[Part]]:
    return [list(dict.fromkeys(parts)) for parts in everyone]


def _overlap(one: Part, other: Part) -> bool:
    axes = zip(one[1], one[2], other[1], other[2], strict=True)
    return all(start < there + most and there < start + extent for start, extent, there, most in axes)
