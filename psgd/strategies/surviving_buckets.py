"""Buckets of a run that goes on without workers that die: a failed call ends the round, and others may take its place.

The sum is made where the gradient lies, as without deaths, so nothing is kept and nothing is copied. Where a round has
to be made again, its gradients are computed again first, all that it adds.
"""

import contextlib
from typing import TYPE_CHECKING

from mpi4py import MPI

from psgd.kernels.errors import Error
from psgd.strategies.buckets import Buckets, Vector

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.collectives.fastpath.persistent import Prequest


class SurvivingBuckets(Buckets):
    """One worker's sum. Creating is collective, blocks. On the host only.

    A call that cannot be started during backward, since a worker has died, is no error there: `wait` raises it.
    """

    def __init__(self, comm: "Communicator", like: Vector, steps: int) -> None:
        self._active: list[Prequest] = []
        self._failed: BaseException | None = None
        super().__init__(comm, like, steps)

    def wait(self) -> None:
        if self._failed is not None:
            raise self._failed
        while self._active:
            self._active[0].Wait()
            del self._active[0]
        self._launched = 0

    def settle(self) -> None:
        """Returns when no call is under way any more, however it ended. After `Communicator.revoke`; blocks."""
        for call in self._active:
            with contextlib.suppress(Error, MPI.Exception):
                call.Wait()
        self._active.clear()

    def regroup(self, comm: "Communicator") -> None:
        """The workers are those of `comm` from now on, and nothing has been added yet. Collective over it, blocks."""
        self._comm, self._launched, self._failed = comm, 0, None
        self.clear()
        self._cut()

    def _start(self, bucket: int) -> None:
        if self._failed is not None:
            return
        call = self._calls[bucket]
        try:
            call.Start()
        except (Error, MPI.Exception) as error:
            self._failed = error
        else:
            self._active.append(call)
            self._launched += 1
