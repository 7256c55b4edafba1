"""Gradients of parameters that several layers share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from psgd.kernels.array import Array, array_module
from psgd.nn import sequential
from psgd.nn.layer import Arrays


class SharedGradients:
    """The gradients of parameters with several names: made apart, and added where the place is, in layer order.

    Args:
        steps: of one stage.
        tied: as `sequential.tied_places` gives it.
        dtype: of gradients.
    """

    def __init__(self, steps: Sequence[sequential.Step], tied: dict[str, str], dtype: np.dtype[Any]) -> None:
        where = {spec.name: (i, j) for i, step in enumerate(steps) for j, spec in enumerate(step.specs)}
        self._apart = {where[name]: (steps[where[name][0]].specs[where[name][1]].shape) for name in tied}
        self._joined: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        for name, place in tied.items():
            index, position = where[place]
            self._joined.setdefault(index, []).append((position, where[name]))
        self._dtype = dtype
        self._buffers: dict[tuple[int, int], Array] = {}
        self._xp: Any = None

    def apart(self, grads: list[Arrays], xp: Any) -> list[Arrays]:
        """Returns the gradients by layer, with buffers of their own for names that have no place. Made once."""
        if not self._apart:
            return grads
        if xp is not self._xp:
            self._xp = xp
            self._buffers = {where: xp.empty(shape, self._dtype) for where, shape in self._apart.items()}
        return [
            tuple(self._buffers.get((i, j), array) for j, array in enumerate(arrays)) for i, arrays in enumerate(grads)
        ]

    def join(self, index: int, grads: Arrays) -> None:
        """Adds to a layer's gradients, just made, what later layers have for the same parameters."""
        for position, where in self._joined.get(index, ()):
            total = grads[position]
            array_module(total).add(total, self._buffers[where], out=total)
