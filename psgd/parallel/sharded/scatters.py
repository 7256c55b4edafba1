"""The gradient of a step by units: each is reduce-scattered as soon as it is final. N ranks, U elements, U (N - 1)/N.

Every rank adds samples * gradient, and the sum over the ranks follows, in rank order: the bits are those of
`psgd.strategies.buckets`, of which each rank has its own elements. Of several steps to a sum each is reduced by itself,
and a rank adds its own elements of one to those of the steps before: it never has a whole gradient. So the order is
another one than that of `Buckets`, where each rank adds its own steps first, and each step travels.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from psgd.kernels.array import Array
from psgd.parallel.sharded.order import Behind, ordered, settle
from psgd.parallel.sharded.slices import Slices

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class Scatters:
    """One rank's sum. Creating is collective, blocks.

    Args:
        comm: the ranks that share the vector.
        slices: of this rank.
        grads: for each unit where a step's gradient is written; several may share memory.
        own: this rank's vector, for the sum over all ranks.
        arriving: for each unit where this rank's part of one step's sum arrives; units may share it that share memory
            of `grads`. None: in `own`, where one step is the sum.
        behind: of exchanges with this communicator.

    Attributes:
        unit: gradients are weighed by samples / unit, a power of two.
        nbytes: sent so far; all ranks together have received as many.
        added: steps in the sum.
    """

    def __init__(
        self,
        comm: "Communicator",
        slices: Slices,
        grads: Sequence[Array],
        own: Sequence[Array],
        arriving: Sequence[Array] | None,
        behind: Behind,
    ) -> None:
        self.unit = 1
        self.nbytes = self.added = 0
        self._grads, self._own, self._arriving, self._behind = grads, own, arriving, behind
        self._coming: dict[int, bool] = {}  # units that were started, and whether theirs is the sum's first step
        self._each = [int(w.nbytes - o.nbytes) for w, o in zip(grads, own, strict=True)]
        calls = [
            comm.Reduce_scatter_init(unit, part, slices.counts(number))
            for number, (unit, part) in enumerate(zip(grads, arriving or own, strict=True))
        ]
        self._calls = ordered(behind, calls)

    def add(self, unit: int, samples: int) -> None:
        """Begins to reduce this step's gradient of a unit. Does not block."""
        self.weigh(self._grads[unit], samples)
        with self._behind():
            self._calls[unit].Start()
        self._coming[unit] = not self.added
        self.nbytes += self._each[unit]

    def weigh(self, grad: Array, samples: int) -> None:
        """Makes a step's gradient this rank's part of the sum, in place."""
        weight = samples / self.unit
        if not samples:
            grad.fill(0)
        elif weight != 1.0:
            np.multiply(grad, grad.dtype.type(weight), out=grad)

    def step(self) -> None:
        """All units of a step were added."""
        self.added += 1

    def wait(self, unit: int) -> None:
        """The unit is reduced, and its memory may be written by what is computed from now on.

        At once where nothing was started. Blocks, but for GPUs that are peers.
        """
        self._calls[unit].Wait()
        first = self._coming.pop(unit, None)
        if first is None or self._arriving is None:
            return
        if first:
            self._own[unit][...] = self._arriving[unit]
        else:
            np.add(self._own[unit], self._arriving[unit], out=self._own[unit])

    def clear(self) -> None:
        """Blocks until all is reduced; the next step begins another sum. Collective."""
        for unit in range(len(self._calls)):
            self.wait(unit)
        settle(self._behind)
        self.added = 0

    def free(self) -> None:
        """Ends the calls, none of which may be under way."""
        for call in self._calls:
            call.Free()
