"""Waiting for MPI without starving anyone: test, then sleep in proportion to the time waited.

A blocking MPI wait spins. That is fast while every rank has a core and ruinous when ranks outnumber cores: the
spinning rank holds the core that its peer needs. It also runs no Python signal handler. So psgd waits in loops of
Test calls, which progress MPI, and after a patience it sleeps a tenth of the time waited so far. The sleep then
costs at most about a tenth of any wait, and an idle rank costs next to nothing.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

import numpy as np
from mpi4py import MPI

Made = TypeVar("Made")
Test = Callable[[], bool]
"""Whether something is done. Returns at once; what it stands for is complete once it has returned True."""
Steps = Generator[Test, None, None]
"""A call in steps: it yields tests, and is resumed once the test that it yielded last has returned True."""
_PR_SET_TIMERSLACK = 29
_PATIENCE_S = 20e-3
_CROWDED_PATIENCE_S = 2e-6
_YIELDING_S = 1e-3
_SHORTEST_S = 20e-6
_LONGEST_S = 1e-3
_SHARE = 0.1


class Waiter:
    """Waits until a test succeeds.

    Args:
        crowded: ranks outnumber cores on this node, so a spinning rank holds a core that its peer needs.
        watch: called between tests; it raises to end a wait for something that will never come.
        far: what is waited for comes from other nodes, so late that others may have the core meanwhile.
    """

    def __init__(self, crowded: bool, watch: Callable[[], None] | None = None, far: bool = False) -> None:
        self.crowded = crowded
        self._yields = crowded or far
        self._watch = watch or _nothing
        self._patience_s = _CROWDED_PATIENCE_S if crowded else _PATIENCE_S
        if crowded:
            _sharpen_timer()

    @classmethod
    def for_node(cls, comm: MPI.Intracomm, watch: Callable[[], None] | None = None) -> "Waiter":
        """Decides from this node's ranks and cores. Collective over `comm`."""
        return cls(ranks_outnumber_cores(comm), watch)

    def guarded(self, guard: Callable[[Callable[[], None]], None]) -> "Waiter":
        """One that waits alike, but calls `guard` with what this one calls between tests."""
        return Waiter(self.crowded, partial(guard, self._watch), far=self._yields)

    def until(self, test: Callable[[], Made], patience_s: float | None = None, yields: bool = False) -> Made:
        """Calls `test` until it returns something true: for what may take long. Blocks; its exceptions pass.

        Args:
            test: returns at once.
            patience_s: how long not to sleep; None is as this node's cores suggest.
            yields: gives the core to others that are ready meanwhile.

        Returns:
            What `test` returned.
        """
        if found := test():
            return found
        clock = time.perf_counter
        start, patience_s = clock(), self._patience_s if patience_s is None else patience_s
        while not (found := test()):
            self._watch()
            waited = clock() - start
            if waited > patience_s:
                time.sleep(min(_LONGEST_S, max(_SHORTEST_S, waited * _SHARE)))
            elif yields:
                os.sched_yield()
        return found

    def soon(self, test: Callable[[], object]) -> None:
        """For what is likely to come within a millisecond, but may take long: yields the core first, sleeps later."""
        self.until(test, max(self._patience_s, _YIELDING_S), self._yields)

    def flowing(self, test: Callable[[], object]) -> None:
        """The same for data on its way: both sides must keep calling MPI, so it yields the core but never sleeps."""
        while not test():
            self._watch()
            if self._yields:
                os.sched_yield()


def _nothing() -> None:
    pass


def cores_per_rank(comm: MPI.Intracomm) -> float:
    """Cores in the union of the affinities of this node's ranks, for each of these ranks.

    Collective over `comm`, blocks; the answer may differ between nodes.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        mine = np.zeros(4096, np.uint8)
        mine[[core for core in os.sched_getaffinity(0) if core < mine.size]] = 1
        union = np.empty_like(mine)
        node.Allreduce(mine, union, MPI.MAX)
        return int(union.sum()) / node.size
    finally:
        node.Free()


def ranks_outnumber_cores(comm: MPI.Intracomm) -> bool:
    """Whether the ranks of this node share cores. Collective over `comm`."""
    return cores_per_rank(comm) < 1


def _sharpen_timer() -> None:
    """Asks Linux to wake sleepers within about 1 us instead of 50 us; harmless where it is not possible."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
