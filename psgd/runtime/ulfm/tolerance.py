"""Which deaths this process survives, for the thread that ends the job at all others."""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

Comm = TypeVar("Comm")
Found = TypeVar("Found")


class Tolerance(Generic[Comm]):
    """What a run has said about the ranks of the job.

    Attributes:
        survivors: the communicator of those that live, once a run has made one; else None.
        gathers: `psgd.runtime.ulfm.survivors.Survivors.together` of the newest of them; None where there are none.
        look: called every fifth of a second by the thread that ends the job, in place of what it does at a death;
            returns whether the job must end all the same. None leaves all to that thread.
        lost: ranks of the job that died before the run was begun again, in whose place others are.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed: frozenset[int] = frozenset()
        self.survivors: Comm | None = None
        self.gathers: Callable[[Callable[[Comm], Any]], Any] | None = None
        self.look: Callable[[], bool] | None = None
        self.lost: list[int] = []

    def allow(self, ranks: Iterable[int]) -> None:
        """From now on these ranks of the job may die, and no others."""
        with self._lock:
            self._allowed = frozenset(ranks)

    def ends_at(self, dead: Iterable[int]) -> set[int]:
        """Those of the dead that this process does not survive."""
        with self._lock:
            return set(dead) - self._allowed

    def living(self, comm: Comm) -> Comm:
        """The communicator of those that live, or `comm` where no run has made one."""
        return comm if self.survivors is None else self.survivors

    def together(self, comm: Comm, act: Callable[[Comm], Found]) -> Found:
        """Does something with all that live, again where one dies in it; with `comm` where no run has made survivors.

        Collective, blocks. Returns what `act` returned, which is given the communicator.
        """
        found: Found = act(comm) if self.gathers is None else self.gathers(act)
        return found


TOLERANCE: Tolerance = Tolerance()  # type: ignore[type-arg]  # of MPI's communicators, which are not imported here
"""This process's."""
