"""The optimizer's step of a rank that has its own slices of the vector, and of the optimizer's state."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from mpi4py import MPI

from psgd.kernels.array import Array, array_module
from psgd.kernels.exact_squares import LIMBS
from psgd.optim.optimizer import Optimizer, OptimizerOptions, clipped
from psgd.parallel.sharded.slices import Slices

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.parallel.sharded.gathers import Gathers


class _Segment(NamedTuple):
    params: Array
    grad: Array
    state: tuple[Array, ...]
    start: int  # in the whole vector


class OwnUpdate:
    """Parameters in their places, gradients and state of the own slices. Creating is collective, blocks.

    Args:
        options: of the run.
        comm: the ranks that share the vector.
        slices: of this rank.
        params: this rank's own vector, or the whole one.
        grads: this rank's part of each unit's reduced gradient.

    Attributes:
        optimizer: whose state has `slices.size` elements.
    """

    def __init__(
        self, options: OptimizerOptions, comm: "Communicator", slices: Slices, params: Array, grads: Sequence[Array]
    ) -> None:
        self._comm = comm
        places = [slices.place(unit) for unit in range(len(slices.units))]
        if params.size == slices.size and slices.ranks > 1:
            own, parts = params, [params[place] for place in places]
        else:
            own = array_module(params).empty(slices.size, params.dtype)  # for its size: it is let go below
            parts = [params[part.start : part.stop] for part in slices.own]
        self.optimizer = Optimizer(own, options)
        self.optimizer.params = params
        states = [tuple(each[place] for each in self.optimizer.state) for place in places]
        self._segments = [
            _Segment(part, grad, state, mine.start)
            for part, grad, state, mine in zip(parts, grads, states, slices.own, strict=True)
        ]

    def take(self, scale: float, position: float, gathers: "Gathers | None" = None) -> None:
        """A step with the gradient `scale * grads`, shrunk to the largest norm. Collective, blocks.

        Args:
            scale: more than 0.
            position: samples applied before, for the learning rate.
            gathers: makes a unit whole on all ranks as soon as it is updated, where each has the whole vector.
        """
        optimizer = self.optimizer
        if optimizer.clips:
            scale = clipped(scale, self._sum_of_squares(), optimizer.options.clip_norm)
        optimizer.begin(position)
        for unit, each in enumerate(self._segments):
            if each.params.size:
                optimizer.update(each.params, each.grad, each.state, optimizer.lr, scale, optimizer.version)
            if gathers is not None:
                gathers.start(unit)
        for unit in range(len(self._segments)) if gathers is not None else ():
            assert gathers is not None
            gathers.wait(unit)

    def _sum_of_squares(self) -> float:
        """Of the whole gradient, exact until it is rounded: the same bits on all ranks and without sharding."""
        options, limbs = self.optimizer.options, np.zeros(LIMBS)
        for each in self._segments:
            limbs += options.digits(each.grad, each.start)
        self._comm.Allreduce(MPI.IN_PLACE, limbs)
        return options.total(limbs)
