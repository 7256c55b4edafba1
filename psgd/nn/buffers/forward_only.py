"""Contexts of which no backward pass follows: a layer's buffers serve again once the next one has read its output.

Layers in a row take turns in two sets of buffers; those inside a layer that has buffers too have two sets of their own.
"""

from dataclasses import replace
from typing import Any

from psgd.nn.buffers.pooled import PooledArrays
from psgd.nn.layer import Layer, Room

_TURN = "turn"


def allocate(layer: Layer[Any], room: Room) -> Any:
    """Makes the state of the next layer of a row.

    Args:
        layer: whose output, where it is no buffer of its own, may be its input: that is then not overwritten yet.
        room: of the layer; `level` tells rows apart.
    """
    base = getattr(room.xp, "apart", room.xp)
    if not layer.own_output:
        return layer.allocate(replace(room, xp=base))
    turn: int = room.pool.setdefault((_TURN, room.level), 0)
    arrays = PooledArrays(base, room.pool.setdefault((room.level, turn % 2), {}))
    state = layer.allocate(replace(room, xp=arrays))
    if arrays.used:
        room.pool[_TURN, room.level] = turn + 1
    return state


def inside(room: Room) -> Room:
    """For layers inside another one, while whose input and output are in use."""
    return replace(room, level=room.level + 1)
