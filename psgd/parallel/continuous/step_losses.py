"""The loss of each step of a pipeline that is never empty, told by its last stage to all others while they go on."""

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag


class StepLosses:
    """One number a step, from one rank to all others, in order. Receives are posted ahead.

    The others learn of a step before they take it, so the source is never more than `ahead` steps before them.

    Args:
        comm: private to the pipeline.
        source: the rank that knows.
        ahead: steps that the source may be ahead of another rank.

    Attributes:
        value: of the step that `known` was true for last.
    """

    def __init__(self, comm: MPI.Intracomm, source: int, ahead: int) -> None:
        self.value = 0.0
        rank, others = comm.Get_rank(), [rank for rank in range(comm.Get_size()) if rank != source]
        self._numbers = np.zeros((ahead, 1))
        self._out = [[comm.Send_init(each, to, Tag.STEP_LOSS) for to in others] for each in self._numbers]
        if rank != source:
            self._out = []
        self._in = [] if rank == source else [comm.Recv_init(each, source, Tag.STEP_LOSS) for each in self._numbers]
        self._at = 0
        MPI.Prequest.Startall(self._in)

    def free(self) -> bool:
        """On the source: whether the next loss can be told. Does not block."""
        return bool(MPI.Prequest.Testall(self._out[self._at]))

    def tell(self, loss: float) -> None:
        """On the source, once `free` was true. Does not block."""
        self.value = self._numbers[self._at, 0] = loss
        MPI.Prequest.Startall(self._out[self._at])
        self._at = (self._at + 1) % len(self._numbers)

    def known(self) -> bool:
        """On the others: whether the next step's loss is here, which is `value` then. Does not block."""
        if not self._in[self._at].Test():
            return False
        self.value = float(self._numbers[self._at, 0])
        self._in[self._at].Start()
        self._at = (self._at + 1) % len(self._numbers)
        return True

    def close(self) -> None:
        """Frees the requests. Blocks for a moment at most."""
        close(self._in, [each for one in self._out for each in one])
        self._in, self._out = [], []
