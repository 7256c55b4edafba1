"""Which rank gets which coordinates, from the names of their nodes alone: what is exchanged most stays in a node.

Groups are built from the inside out. The innermost axis takes whole groups out of each node, in rank order; what is
left over of several nodes is joined at the end, so no other way keeps more of its groups inside nodes. Those groups
are then the ranks of the next axis. Rank 0 has coordinate 0 along every axis.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from psgd.kernels.notice import in_mesh
from psgd.parallel.axes import AXES

Place = dict[str, int]
_ORDER = tuple(AXES)


def arrange(nodes: Sequence[str], sizes: Mapping[str, int]) -> tuple[tuple[str, ...], list[Place]]:
    """Returns the axes, innermost first, and the coordinates of each rank.

    Of all orders, the one with the fewest tensor groups that spread over several nodes; of those the one in which the
    fewest axes leave a node; then the one that keeps an axis inside that exchanges more. So replicas are on different
    nodes where each fits into one, and a pipeline goes from node to node where it does not.

    Args:
        nodes: the node of each rank.
        sizes: ranks along each axis of `AXES`, one missing is 1; their product is the number of ranks.
    """
    found = {name: sizes.get(name, 1) for name in _ORDER}
    assert math.prod(found.values()) == len(nodes), (found, len(nodes))
    used = [name for name in _ORDER if found[name] > 1]
    unused = [name for name in _ORDER if found[name] == 1]
    best = min(
        ((order, _places(nodes, order, found)) for order in itertools.permutations(used)),
        key=lambda each: _cost(nodes, each[1]),
    )
    return (*best[0], *unused), best[1]


class Grid:
    """Ranks of some nodes in a mesh.

    Args:
        nodes: the node of each rank.
        sizes: as `arrange`.

    Attributes:
        sizes: ranks along each axis of `AXES`.
        order: the axes, nearest neighbours first.
        places: the coordinates of each rank.
    """

    def __init__(self, nodes: Sequence[str], sizes: Mapping[str, int]) -> None:
        self.sizes = {name: sizes.get(name, 1) for name in _ORDER}
        self.order, self.places = arrange(nodes, sizes)
        self._nodes = nodes

    def describe(self, servers: int = 0) -> str:
        """One line: the axes of more than one rank, nearest neighbours first, and which of them leave a node.

        Args:
            servers: how many along `data` are servers.
        """
        parts = []
        for name in (each for each in self.order if self.sizes[each] > 1):
            far, groups = crossing(self._nodes, self.places, name), len(self.places) // self.sizes[name]
            some = f"{far} of {groups} groups leave their node"
            where = "inside a node" if not far else "between nodes" if far == groups else some
            serving = f" with {servers} server{'' if servers == 1 else 's'}" if servers and name == "data" else ""
            parts.append(f"{name} {self.sizes[name]}{serving} ({where})")
        return f"mesh: {', '.join(parts) or 'one rank along every axis'}"

    def roles(self, servers: int = 0) -> list[str]:
        """What each rank is: `worker 1 pipe=0,tensor=1`; the first along `data` are the servers."""
        roles = []
        for place in self.places:
            serves, index = place["data"] < servers, place["data"]
            role = f"server {index}" if serves else f"worker {index - servers}"
            where = in_mesh({name: place[name] for name in ("pipe", "tensor")}, self.sizes)
            roles.append(f"{role} {where}".rstrip())
        return roles


def crossing(nodes: Sequence[str], places: Sequence[Place], axis: str) -> int:
    """How many groups along an axis have ranks on more than one node."""
    groups: dict[tuple[int, ...], set[str]] = {}
    for node, place in zip(nodes, places, strict=True):
        groups.setdefault(tuple(at for name, at in place.items() if name != axis), set()).add(node)
    return sum(len(each) > 1 for each in groups.values())


def _cost(nodes: Sequence[str], places: Sequence[Place]) -> tuple[int, ...]:
    counts = [crossing(nodes, places, axis) for axis in _ORDER]
    return counts[0], sum(count > 0 for count in counts), *counts


def _places(nodes: Sequence[str], order: Sequence[str], sizes: Mapping[str, int]) -> list[Place]:
    places = [dict.fromkeys(_ORDER, 0) for _ in nodes]
    units = [[rank] for rank in range(len(nodes))]
    for axis in order:
        units = _joined(nodes, units, sizes[axis])
        for unit in units:
            part = len(unit) // sizes[axis]
            for index, rank in enumerate(unit):
                places[rank][axis] = index // part
    return places


def _joined(nodes: Sequence[str], units: Sequence[list[int]], size: int) -> list[list[int]]:
    """Units of several ranks, `size` of them as one: those of one node as far as they go, by their first rank."""
    by_node: dict[str, list[list[int]]] = {}
    left: list[list[int]] = []
    for unit in units:
        homes = {nodes[rank] for rank in unit}
        (by_node.setdefault(homes.pop(), []) if len(homes) == 1 else left).append(unit)
    groups: list[list[list[int]]] = []
    for there in by_node.values():
        whole = len(there) // size * size
        groups += [there[start : start + size] for start in range(0, whole, size)]
        left += there[whole:]
    left.sort()
    groups += [left[start : start + size] for start in range(0, len(left), size)]
    return sorted([rank for unit in group for rank in unit] for group in groups)
