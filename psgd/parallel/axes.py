"""The axes along which a model and its data are cut: one table, and the text of `--mesh`. Imports no MPI.

The order of the table is how much ranks along an axis exchange, most first: tensor ranks twice in every layer, stages
one activation a microbatch, replicas one gradient a step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from psgd.kernels.errors import UsageError
from psgd.runtime.option import LARGEST, either


@dataclass(frozen=True)
class Axis:
    """One way to use more ranks.

    Attributes:
        cuts: what each rank along it has a part of.
        of_a_replica: its ranks hold one copy of the model together, and so take each step together.
    """

    cuts: str
    of_a_replica: bool


AXES: Mapping[str, Axis] = MappingProxyType(
    {
        "tensor": Axis("the weights of each layer", of_a_replica=True),
        "pipe": Axis("the layers", of_a_replica=True),
        "data": Axis("the samples", of_a_replica=False),
    }
)


def parse(text: str, where: str = "--mesh") -> dict[str, int]:
    """Reads `pipe=2,tensor=2,data=2`: the axes that are named, with the number of ranks along each.

    Args:
        text: what the user wrote.
        where: the option, for the message.

    Raises:
        UsageError: an unknown axis, one that is named twice, or no whole number of 1 or more.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if name not in AXES or not equals:
            raise UsageError(f"{where} {text}: expected AXIS=RANKS with {either(AXES)}, got {part.strip()!r}")
        if name in sizes:
            raise UsageError(f"{where} {text}: {name} is given twice")
        if not number.isdecimal() or not 1 <= int(number) <= LARGEST:
            raise UsageError(f"{where} {text}: {name}: expected a whole number, at least 1, got {number!r}")
        sizes[name] = int(number)
    return sizes


def written(sizes: Mapping[str, int]) -> str:
    """The sizes as `--mesh` takes them, without axes of one rank; empty where all are."""
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1)


def ranks_of_a_copy(sizes: Mapping[str, int]) -> int:
    """How many ranks hold one copy of the model together."""
    return math.prod(sizes.get(name, 1) for name, axis in AXES.items() if axis.of_a_replica)
