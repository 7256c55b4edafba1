"""Gradients of a parameter that stages on several ranks hold: each has a part of it, and all need the sum.

The parts are added in the order of the stages, so that all holders get the same bits, whoever computes them. On GPUs a
parameter of two ranks is summed by these, of which the order does not matter; others, and all elsewhere, on the hosts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives import Communicator
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
    """This rank's part in the sums. Creating is collective; else it is collective over the holders of each parameter.

    Args:
        comm: private to the pipeline.
        ties: of `find`.
        mine: for each tie and each stage of this rank that holds it, where it lies in this rank's vector.
        dtype: of gradients.
        on_gpus: where they are, on all ranks.

    Attributes:
        ranges: of this rank's vector, which `finish` completes.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        ties: Sequence[Tie],
        mine: Mapping[tuple[str, int], range],
        dtype: Any,
        on_gpus: bool = False,
    ) -> None:
        self._sums: list[tuple[np.ndarray[Any, Any], list[tuple[int, range]]]] = []
        self._sends: list[MPI.Prequest] = []
        self._receives: list[MPI.Prequest] = []
        self._pairs: dict[tuple[int, ...], Communicator | None] = {}
        self._between_gpus: list[tuple[Communicator, range]] = []
        self.ranges = list(mine.values())
        for number, tie in enumerate(ties):
            ranks = [place(at, comm.Get_size())[0] for at in tie.stages]
            if on_gpus and len(ranks) == len(set(ranks)) == 2:
                if (pair := self._pair(comm, ranks)) is not None:
                    (where,) = (mine[tie.name, at] for at in tie.stages if (tie.name, at) in mine)
                    self._between_gpus.append((pair, where))
                continue
            own = [(row, mine[tie.name, at]) for row, at in enumerate(tie.stages) if (tie.name, at) in mine]
            if not own:
                continue
            parts = np.zeros((len(tie.stages), tie.size), dtype)
            self._sums.append((parts, own))
            for row, rank in enumerate(ranks):
                tag = Tag.TIED + number
                if rank != comm.Get_rank():
                    self._receives.append(comm.Recv_init([parts[row], MPI.BYTE], rank, tag))
                else:
                    others = sorted(set(ranks) - {rank})
                    self._sends += [comm.Send_init([parts[row], MPI.BYTE], other, tag) for other in others]

    def _pair(self, comm: MPI.Intracomm, ranks: Sequence[int]) -> Communicator | None:
        """Makes what two ranks sum by, once; None on others. Collective."""
        key = tuple(sorted(ranks))
        if key not in self._pairs:
            within = comm.Get_rank() in key
            part = comm.Split(0 if within else MPI.UNDEFINED, comm.Get_rank())
            self._pairs[key] = None
            if within:
                self._pairs[key] = Communicator(part)
                part.Free()
        return self._pairs[key]

    def start(self, grads: Array) -> None:
        """This rank's parts are final: sends them. Does not block, but where GPUs that sum are not peers."""
        for pair, where in self._between_gpus:
            pair.Allreduce_enqueue(MPI.IN_PLACE, grads[where.start : where.stop])
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

    def close(self, failed: bool = False) -> None:
        """Frees what it has; collective, unless a rank has failed. Blocks for a moment at most."""
        close(self._receives, self._sends)
        for pair in self._pairs.values():
            if pair is not None and not failed:
                pair.free()
        self._pairs, self._between_gpus = {}, []
        self._receives, self._sends, self._sums = [], [], []
