"""What one rank of a pipeline knows alone, told to all: the loss, or the right answers."""

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag

_WORDS = 2


class Announcement:
    """Two numbers, as often as wanted, from one rank to all others.

    Args:
        comm: private to the pipeline.
        source: the rank that tells.

    Attributes:
        source: as given.
        values: told last; valid once `known` has returned True.
    """

    def __init__(self, comm: MPI.Intracomm, source: int) -> None:
        self.source = source
        self._numbers = np.zeros(_WORDS)
        others = [rank for rank in range(comm.Get_size()) if rank != source]
        mine = comm.Get_rank() == source
        self._out = [comm.Send_init(self._numbers, rank, Tag.LOSS) for rank in others] if mine else []
        self._in = [] if mine else [comm.Recv_init(self._numbers, source, Tag.LOSS)]
        self._started = False

    @property
    def values(self) -> tuple[float, float]:
        """The two numbers."""
        first, second = self._numbers.tolist()
        return first, second

    def tell(self, first: float, second: float) -> None:
        """On the source only, after `known` of what was told before. Does not block."""
        self._numbers[:] = first, second
        MPI.Prequest.Startall(self._out)

    def known(self) -> bool:
        """Whether the numbers are here, or have left the source. Does not block."""
        if self._in and not self._started:
            self._in[0].Start()
            self._started = True
        if not MPI.Prequest.Testall(self._in or self._out):
            return False
        self._started = False
        return True

    def close(self) -> None:
        """Frees the requests. Blocks for a moment at most."""
        close(self._in, self._out)
        self._in, self._out = [], []
