"""Where workers that do not keep pace meet, so that they can be cut: `psgd.worker.checkpoint_votes`.

Whoever wants a cut calls the others by a message; all come at their next step's end, or from where they wait for the
end. They meet in an all-gather, in which they go on answering each other; then what is under way is brought to its
end, as each strategy does it; and after a barrier all go on. It costs one wait for the slowest.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.worker.checkpoint_votes import CheckpointVotes
from psgd.worker.liveness import Liveness

_LOOK_S = 1e-3
_STEPS, _WISH, _CALLS, _HEAD = range(4)


class CheckpointBarrier:
    """One worker's part.

    Args:
        workers: their communicator, on which nobody else uses the tag or makes collectives while they train.
        cuts: this worker's.
        watch: of the others.
        waiter: that looks after them.
        words: numbers of its own that each tells the others.
    """

    def __init__(
        self, workers: MPI.Intracomm, cuts: CheckpointVotes, watch: Liveness, waiter: Waiter, words: int = 0
    ) -> None:
        self._workers, self._cuts, self._watch, self._waiter = workers, cuts, watch, waiter
        self._mine = np.zeros(_HEAD + words)
        self._all = np.zeros((workers.size, _HEAD + words))
        self._called = False
        self._next_look = 0.0

    def wanted(self, steps: int) -> bool:
        """Whether this worker wants a cut, after so many steps of its own."""
        return self._cuts.wish > 0 or self._cuts.due(steps)

    def called(self) -> bool:
        """Whether another one has called. Does not block."""
        now = time.perf_counter()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        with self._watch.guard():
            return bool(self._workers.Iprobe(MPI.ANY_SOURCE, Tag.CONTROL))

    def call(self, others: Sequence[int]) -> None:
        """Calls others, before `come`: they come too."""
        self._called = True
        with self._watch.guard():
            for rank in others:
                if rank != self._workers.rank:
                    self._workers.Isend([self._mine, 0, MPI.DOUBLE], rank, Tag.CONTROL).Free()  # empty: no buffer

    def come(
        self,
        steps: int,
        quiet: Callable[[], object] | None = None,
        words: Sequence[float] = (),
        callers: Sequence[int] | None = None,
    ) -> NDArray[np.float64]:
        """Meets the others, and agrees with them on the cut. Blocks until all have come.

        Args:
            steps: of this worker.
            quiet: called while it waits, to answer others; it is done waiting only once this returns something true.
            words: of this worker.
            callers: who may have called this worker; None are all.

        Returns:
            The words of all, a row for each, valid until the next meeting.
        """
        mine, everyone, quiet = self._mine, self._all, quiet or _always
        mine[:_HEAD] = steps, self._cuts.told(), self._called
        mine[_HEAD:] = words
        self._called = False
        with self._watch.guard():
            self._wait(self._workers.Iallgather(mine, everyone.reshape(-1)), quiet)
            for rank in range(self._workers.size) if callers is None else callers:
                if rank != self._workers.rank and everyone[rank, _CALLS]:
                    self._wait(self._workers.Irecv([None, 0, MPI.DOUBLE], rank, Tag.CONTROL), quiet)
        self._cuts.agree(int(everyone[:, (_WISH, _CALLS)].max()), int(everyone[:, _STEPS].max()))
        return everyone[:, _HEAD:]

    def part(self) -> None:
        """Waits until all are ready to be saved: who goes on before would change what others have yet to save."""
        with self._watch.guard():
            self._wait(self._workers.Ibarrier(), _always)

    def _wait(self, request: MPI.Request, quiet: Callable[[], object]) -> None:
        try:
            self._waiter.soon(lambda: bool(quiet()) and request.Test())
        except BaseException:
            keep_for_ever(request)
            raise


def _always() -> bool:
    return True
