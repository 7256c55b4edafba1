"""Buckets whose round can be made again when a worker has died in it: the gradient stays until its sum is used.

Gradient and sum are two vectors. A gradient that needs no weight is reduced from the one into the other as it is, so
nothing is copied; one that needs a weight, or is of several steps, is weighed on the way. A call that cannot be started
during backward, because a worker has died, is no error there: `wait` says so.
"""

import contextlib
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from psgd.kernels import accumulate as kernels
from psgd.kernels.errors import Error
from psgd.runtime.device_vectors import registered
from psgd.strategies.buckets import Buckets, Vector

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.collectives.fastpath.persistent import Prequest


class SurvivingBuckets(Buckets):
    """One worker's sum. Creating is collective, blocks. On the host only.

    With several steps to a sum there is a third vector: the sum of this worker's own gradients.
    """

    def __init__(self, comm: "Communicator", like: Vector, steps: int) -> None:
        self._active: list[Prequest] = []
        self._failed: BaseException | None = None
        self._as_it_is = False  # this step's gradient needs no weight
        super().__init__(comm, like, steps)

    def _allocate(self, like: Vector) -> None:
        self.sum = registered(self._comm, like)
        apart = registered(self._comm, like)
        self.grads, self._own = (apart, self.sum) if self._steps == 1 else (np.zeros_like(like), apart)

    def _bound(self) -> "list[Prequest]":
        alone = self._steps == 1
        self._direct: list[Prequest] = []
        calls = []
        for start, own, grads in self._buckets:
            into = self.sum[start : start + own.size]
            calls.append(self._comm.Allreduce_init(MPI.IN_PLACE if alone else own, into))
            if alone:
                self._direct.append(self._comm.Allreduce_init(grads, into))
        return calls

    def compile(self) -> None:
        for call in (*self._calls, *self._direct):
            call.run()

    def wait(self) -> None:
        if self._failed is not None:
            raise self._failed
        while self._active:
            self._active[0].Wait()
            del self._active[0]
        self._launched = 0

    def reduce(self) -> None:
        self._call(0).run()

    def settle(self) -> None:
        """Returns when no call is under way any more, however it ended. After `Communicator.revoke`; blocks."""
        for call in self._active:
            with contextlib.suppress(Error, MPI.Exception):
                call.Wait()
        self._active.clear()

    def regroup(self, comm: "Communicator") -> None:
        """The workers are those of `comm` from now on; the gradient is there still. Collective over it, blocks."""
        complete = self._weighed == len(self._buckets) and self._steps > 1
        self._comm, self._launched, self._failed = comm, 0, None
        self._cut()
        self._weighed = len(self._buckets) if complete else 0

    def free(self) -> None:
        for call in (*self._calls, *self._direct):
            call.Free()

    def _weigh(self, samples: int) -> None:
        if self._steps > 1:
            super()._weigh(samples)
            return
        _, into, grads = self._buckets[self._weighed]
        self._weighed += 1
        self._as_it_is = samples == self.unit
        if not samples:
            into.fill(0)
        elif not self._as_it_is:
            kernels.weigh(into, grads, samples / self.unit)

    def _start(self, bucket: int) -> None:
        if self._failed is not None:
            return
        call = self._call(bucket)
        try:
            call.Start()
        except (Error, MPI.Exception) as error:
            self._failed = error
        else:
            self._active.append(call)
            self._launched += 1

    def _call(self, bucket: int) -> "Prequest":
        return (self._direct if self._as_it_is else self._calls)[bucket]
