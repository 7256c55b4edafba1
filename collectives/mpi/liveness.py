"""Looking after the other ranks in waits that are not those of a collective call."""

import contextlib
import os
import select
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.node import ranks_of_node
from psgd.kernels.errors import PeerLostError

_LOOK_S = 0.1


class Bell(Protocol):
    """How a rank that fails reaches the others."""

    def check(self) -> None:
        """Raises if another has rung. Does not block."""


class Liveness:
    """One rank's view of the others: who rang the alarm, and on this node, whose process ended.

    Args:
        workers: their communicator. Collective over it, blocks.
        alarm: of this rank.
        strategy: what they do, for messages.
        called: what a rank is.

    Attributes:
        node: the ranks on this node, ascending.
    """

    def __init__(self, workers: MPI.Intracomm, alarm: Bell, strategy: str = "easgd", called: str = "worker") -> None:
        self._strategy, self._called = strategy, called
        self.node = ranks_of_node(workers)
        processes = np.empty(workers.size, np.int64)
        workers.Allgather(np.array([os.getpid()], np.int64), processes)
        self._alarm = alarm
        self._worker: dict[int, int] = {}
        self._poll = select.poll()
        self._next_look = 0.0
        for rank in self.node:
            if rank == workers.rank or not hasattr(os, "pidfd_open"):
                continue
            try:
                file = os.pidfd_open(int(processes[rank]))
            except OSError:  # not allowed, or process numbers are not common: nothing is known of it
                continue
            self._worker[file] = rank
            self._poll.register(file, select.POLLIN)
        self.close = weakref.finalize(self, _close, list(self._worker))

    def check(self) -> None:
        """Does not block.

        Raises:
            PeerLostError: one failed or ended.
        """
        with self.guard():
            self._alarm.check()
        now = time.perf_counter()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        self._look()

    def _look(self) -> None:
        if self.close.alive and (ended := self._poll.poll(0)):
            rank = self._worker[ended[0][0]]
            raise PeerLostError(f"{self._strategy}: the process of {self._called} {rank} ended") from None

    def passed(self, requests: list[MPI.Prequest]) -> bool:
        """Whether all requests have ended. Does not block.

        Raises:
            PeerLostError: MPI knows that one never will.
        """
        with self.guard():
            return bool(MPI.Prequest.Testall(requests))

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Around calls of MPI, whose errors become ours.

        Raises:
            PeerLostError: MPI knows that one is lost.
        """
        try:
            yield
        except MPI.Exception as error:
            self._look()  # knows which one
            raise PeerLostError(f"{self._strategy}: MPI reports a lost {self._called}: {error}") from None


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
