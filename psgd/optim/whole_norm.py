"""The norm of a whole model's gradient whose parts lie on several ranks, in an order that no cut changes.

Squares are summed in float64: over each part of a parameter, then over its parts from the first element on, then over
the parameters in the order of the layers. A parameter that several ranks have alike, or that is tied to another one,
counts once. So a pipeline's cuts change no bit. Cuts by tensor add parts where one rank adds elements.
"""

from collections.abc import Iterable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint.pieces.parts import first_owners, placed
from psgd.collectives.mpi.wait import Waiter
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.kernels import accumulate
from psgd.nn.layout import Layout
from psgd.optim.squares import Sums, Wait
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
        self._counts = [len(mine) for mine in owned]
        keys = [(part[:2], at) for at, part in enumerate(part for mine in owned for part in mine)]
        self._order = [(which, at) for (which, _), at in sorted(keys)]

    def local(self, grad: NDArray[np.floating], start: int) -> Sums:
        stop = start + grad.size
        found = (range(max(each.start, start), min(each.stop, stop)) for each in self._ranges)
        return np.array(
            [
                accumulate.sum_of_squares(grad[each.start - start : max(each.start, each.stop) - start])
                for each in found
            ],
            np.float64,
        )

    def total(self, sums: Sums) -> float:
        everyone = sums
        if self._comm.Get_size() > 1:
            everyone = np.empty(sum(self._counts), np.float64)
            self.wait(self._comm.Iallgatherv(sums, [everyone, self._counts]))
        return _nested(everyone.tolist(), self._order)


def _wait(request: MPI.Request) -> None:
    Waiter(False, BACKGROUND.advance, far=True).soon(request.Test)


def _nested(sums: list[float], order: Iterable[tuple[int, int]]) -> float:
    """The parts of a parameter first; one by one, since `sum` rounds differently from Python 3.12 on."""
    total = own = 0.0
    before = -1
    for which, at in order:
        if which != before:
            total, own, before = total + own, 0.0, which
        own += sums[at]
    return total + own
