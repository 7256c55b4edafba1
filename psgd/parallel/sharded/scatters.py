"""The gradient of a step by units: each is reduce-scattered as soon as it is final. N ranks, U elements, U (N - 1)/N.

Every rank adds samples * gradient, over one step or several, and the sum over the ranks follows, in rank order: the
bits are those of `psgd.strategies.buckets`, of which each rank has its own elements. So with several steps to a sum,
each rank keeps its own sum whole: to reduce each step would be another order, and as many times the traffic.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from psgd.kernels import accumulate as kernels
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
        sums: for each unit this rank's sum of several steps; None: a step's gradient is the sum.
        behind: of exchanges with this communicator.

    Attributes:
        unit: gradients are weighed by samples / unit, a power of two.
        nbytes: sent so far; all ranks together have received as many.
    """

    def __init__(
        self,
        comm: "Communicator",
        slices: Slices,
        grads: Sequence[Array],
        own: Sequence[Array],
        sums: Sequence[Array] | None,
        behind: Behind,
    ) -> None:
        self.unit, self.nbytes = 1, 0
        self._grads, self._sums, self._behind = grads, grads if sums is None else sums, behind
        self._several = sums is not None
        self._each = [int(w.nbytes - o.nbytes) for w, o in zip(grads, own, strict=True)]
        calls = [
            comm.Reduce_scatter_init(unit, part, slices.counts(number))
            for number, (unit, part) in enumerate(zip(self._sums, own, strict=True))
        ]
        self._calls = ordered(behind, calls)
        self._before = 0  # samples in the sum, before this step
        if grads:
            none = grads[0][:0]
            kernels.weigh(none, none, 1.0)
            kernels.add_weighted(none, none, 1.0)

    def add(self, unit: int, samples: int, reduces: bool) -> None:
        """Adds this step's gradient of a unit to the sum; with `reduces` begins to reduce that. Does not block."""
        into, grad, weight = self._sums[unit], self._grads[unit], samples / self.unit
        if not samples:
            if not self._before:
                into.fill(0)
        elif self._before:
            kernels.add_weighted(into, grad, weight)
        elif self._several:
            kernels.weigh(into, grad, weight)
        elif weight != 1.0:
            np.multiply(into, into.dtype.type(weight), out=into)
        if reduces:
            with self._behind():
                self._calls[unit].Start()
            self.nbytes += self._each[unit]

    def step(self, samples: int) -> None:
        """All units of a step of so many samples were added."""
        self._before += samples

    def wait(self, unit: int) -> None:
        """The unit is reduced, and its memory may be written by what is computed from now on.

        At once where nothing was started. Blocks, but for GPUs that are peers.
        """
        self._calls[unit].Wait()

    def clear(self) -> None:
        """Blocks until all is reduced; the next step begins another sum. Collective."""
        for call in self._calls:
            call.Wait()
        settle(self._behind)
        self._before = 0

    def free(self) -> None:
        """Ends the calls, none of which may be under way."""
        for call in self._calls:
            call.Free()
