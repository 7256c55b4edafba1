"""The norm of a whole model's gradient whose parts lie on several ranks: the same bits however it is cut.

Each rank sums the squares of its parts exactly; the sums are added exactly over the ranks, in whatever order, and
rounded at the end. A parameter that several ranks have alike, or that is tied to another one, counts once. So neither
a pipeline's cuts nor cuts by tensor change a bit.
"""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint.pieces.parts import first_owners, placed
from psgd.collectives.mpi.wait import Waiter
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.kernels import exact_squares
from psgd.kernels.exact_squares import Limbs
from psgd.nn.layout import Layout
from psgd.optim.squares import Wait
from psgd.runtime.agreement import gather


class WholeNorm:
    """Sums the squares of all ranks' parts. Implements `psgd.optim.squares.Squares`. Creating is collective, blocks.

    Args:
        comm: the ranks that have the whole model's parts between them: one replica, of servers one of each. For
            collectives of psgd alone, in the same order on all of them.
        layout: of this rank's vector.
        whole: the whole model's, with its ties; no rank needs such a vector.
        wait: how to wait for the others; None looks for all alarms of this process.

    Attributes:
        wait: as given.

    Raises:
        AgreedUsageError: on all ranks: the parts are not those of the whole model.
    """

    def __init__(self, comm: MPI.Intracomm, layout: Layout, whole: Layout, wait: Wait | None = None) -> None:
        parts = placed(layout, whole)
        everyone = [
            [(which, tuple(start), tuple(shape)) for which, start, shape in answer["parts"]]
            for answer in gather(comm, {"parts": parts})
        ]
        owned = first_owners(everyone, whole)
        self._comm = comm
        self.wait: Wait = wait or _wait
        places = {part: range(p.offset, p.stop) for p, part in zip(layout.parameters[::-1], parts[::-1], strict=True)}
        self._ranges = [places[part] for part in owned[comm.Get_rank()]]

    def local(self, grad: NDArray[np.floating], start: int) -> Limbs:
        stop = start + grad.size
        limbs = exact_squares.squares(grad[:0])
        for each in self._ranges:
            first, last = max(each.start, start), min(each.stop, stop)
            if first < last:
                limbs += exact_squares.squares(grad[first - start : last - start])
        return limbs

    def total(self, limbs: Limbs) -> float:
        everyone = limbs
        if self._comm.Get_size() > 1:
            everyone = np.empty_like(limbs)
            self.wait(self._comm.Iallreduce(limbs, everyone, MPI.SUM))
        return exact_squares.rounded(everyone)


def _wait(request: MPI.Request) -> None:
    Waiter(False, BACKGROUND.advance, far=True).soon(request.Test)
