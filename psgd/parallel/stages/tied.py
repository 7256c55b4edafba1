"""Gradients of a parameter that stages on several ranks hold: each has a part of it, and all need the sum.

The parts are added in the order of the stages, so that all holders get the same bits, whoever computes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.kernels.array import Array, array_module
from psgd.parallel.schedules.instruction import place


@dataclass(frozen=True)
class Tie:
    """One parameter that several stages hold.

    Attributes:
        name: in the whole model, of the layer that has it first.
        stages: that hold it, ascending.
        size: elements.
    """

    name: str
    stages: tuple[int, ...]
    size: int


def find(held: Sequence[Mapping[str, int]]) -> list[Tie]:
    """Lists the parameters that more than one stage holds, the same on all ranks.

    Args:
        held: by each stage: names in the whole model, and sizes.
    """
    stages: dict[str, list[int]] = {}
    for index, names in enumerate(held):
        for name in names:
            stages.setdefault(name, []).append(index)
    return [Tie(name, tuple(where), held[where[0]][name]) for name, where in sorted(stages.items()) if len(where) > 1]


class TiedGradients:
    """This rank's part in the sums. Collective over the holders of each parameter.

    Args:
        comm: private to the pipeline.
        ties: of `find`.
        mine: for each tie and each stage of this rank that holds it, where it lies in this rank's vector.
        dtype: of gradients.

    Attributes:
        ranges: of this rank's vector, which `finish` completes.
    """

    def __init__(
        self, comm: MPI.Intracomm, ties: Sequence[Tie], mine: Mapping[tuple[str, int], range], dtype: Any
    ) -> None:
        self._sums: list[tuple[np.ndarray[Any, Any], list[tuple[int, range]]]] = []
        self._sends: list[MPI.Prequest] = []
        self._receives: list[MPI.Prequest] = []
        self.ranges = list(mine.values())
        for number, tie in enumerate(ties):
            own = [(row, mine[tie.name, at]) for row, at in enumerate(tie.stages) if (tie.name, at) in mine]
            if not own:
                continue
            parts = np.zeros((len(tie.stages), tie.size), dtype)
            self._sums.append((parts, own))
            holders = [place(at, comm.Get_size())[0] for at in tie.stages]
            for row, rank in enumerate(holders):
                tag = Tag.TIED + number
                if rank != comm.Get_rank():
                    self._receives.append(comm.Recv_init([parts[row], MPI.BYTE], rank, tag))
                else:
                    others = sorted(set(holders) - {rank})
                    self._sends += [comm.Send_init([parts[row], MPI.BYTE], other, tag) for other in others]

    def start(self, grads: Array) -> None:
        """This rank's parts are final: sends them. Does not block."""
        for parts, own in self._sums:
            for row, where in own:
                part = grads[where.start : where.stop]
                parts[row] = part if array_module(part) is np else part.get()
        MPI.Prequest.Startall(self._receives + self._sends)

    def done(self) -> bool:
        """Whether all parts are here, and this rank's have left. Does not block."""
        return MPI.Prequest.Testall(self._receives + self._sends)

    def finish(self, grads: Array) -> None:
        """Writes the sums, after `done`."""
        for parts, own in self._sums:
            total = parts[0]
            for part in parts[1:]:
                np.add(total, part, out=total)
            for _, where in own:
                grads[where.start : where.stop] = array_module(grads).asarray(total)

    def close(self) -> None:
        """Frees the requests. Blocks for a moment at most."""
        close(self._receives, self._sends)
        self._receives, self._sends, self._sums = [], [], []
