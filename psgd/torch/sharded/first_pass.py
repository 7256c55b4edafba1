"""The first pass of ranks of which some have no samples: these do as one with samples tells them, call by call.

Later they repeat what they have done before.
"""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from psgd.kernels.errors import UsageError
from psgd.worker.bound_model import Wait

_WHAT = ("end", "gather", "leave", "make", "reduce")


class FirstPass:
    """One rank's.

    Args:
        comm: the ranks of the module.
        wait: blocks until a request is done.

    Attributes:
        mixed: some ranks have samples, and some have none.
    """

    def __init__(self, comm: MPI.Comm, wait: Wait) -> None:
        self._comm, self._wait = comm, wait
        self._leader = 0
        self.mixed = False

    def begin(self, samples: int) -> bool:
        """All tell whether they have samples; returns whether any has. Collective, blocks."""
        first = self._comm.rank if samples else self._comm.size
        found = np.array([first, 1 if samples else 0], np.int64)
        self._wait(self._comm.Iallreduce(MPI.IN_PLACE, found, MPI.MIN))
        self._leader = int(found[0])
        self.mixed = self._leader < self._comm.size and not found[1]
        return self._leader < self._comm.size

    def tell(self, what: str, unit: int = 0) -> None:
        """A rank with samples is about to do this. Collective, blocks.

        Raises:
            UsageError: the first such rank does something else.
        """
        if (told := self._told(what, unit)) != (what, unit):
            raise UsageError(
                f"psgd.torch: the ranks use the units of the sharded module in different orders: rank {self._leader} "
                f"is at {told[0]} of unit {told[1]}, this one at {what} of unit {unit}: on all of them forward and "
                "backward must run the same layers"
            )

    def follow(self) -> Iterator[tuple[str, int]]:
        """What a rank without samples is to do, until the pass has ended. Collective, blocks."""
        while (told := self._told("end", 0))[0] != "end":
            yield told

    def _told(self, what: str, unit: int) -> tuple[str, int]:
        sent = np.array([_WHAT.index(what), unit], np.int64)
        self._wait(self._comm.Ibcast(sent, self._leader))
        return _WHAT[int(sent[0])], int(sent[1])
