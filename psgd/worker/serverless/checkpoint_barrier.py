"""Where workers that do not keep pace meet for a checkpoint, which they agree on with `CheckpointVotes`.

A worker that wants a checkpoint calls the others by a message. They enter the barrier at their next step's end, or from
where they wait for the end of the run. There they all-gather what they know, and answer each other meanwhile; then each
strategy brings to its end what is under way; and after a second barrier all continue. It costs one wait for the
slowest.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.liveness import Liveness
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.runtime.ulfm.deaths import means_death
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes

_LOOK_S = 1e-3
_STEPS, _REQUEST, _CALLS, _HEAD = range(4)


class AbandonedError(Exception):
    """A worker has died, so that this meeting comes to nothing: those that live meet anew."""


class CheckpointBarrier:
    """One worker's part.

    Args:
        workers: their communicator, on which nobody else uses the tag or makes collectives while they train.
        votes: this worker's.
        liveness: of the others.
        waiter: for its waits; it looks after the others.
        words: numbers of its own that each worker sends to all.
        survives: a death makes `enter` and `leave` raise AbandonedError.
    """

    def __init__(
        self,
        workers: MPI.Intracomm,
        votes: CheckpointVotes,
        liveness: Liveness,
        waiter: Waiter,
        words: int = 0,
        survives: bool = False,
    ) -> None:
        self._survives, self._entered = survives, False
        self._workers, self._votes, self._liveness, self._waiter = workers, votes, liveness, waiter
        self._mine = np.zeros(_HEAD + words)
        self._all = np.zeros((workers.size, _HEAD + words))
        self._calls = False
        self._next_look = 0.0

    def wanted(self, steps: int) -> bool:
        """Whether this worker wants a checkpoint, after so many steps of its own."""
        return self._votes.request > 0 or self._votes.due(steps)

    def called(self) -> bool:
        """Whether another worker has called. Does not block."""
        now = time.perf_counter()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        with self._liveness.guard():
            return bool(self._workers.Iprobe(MPI.ANY_SOURCE, Tag.CONTROL))

    def due(self, steps: int) -> bool:
        """Whether this worker is to enter here: it wants a checkpoint, and calls all others, or one has called it."""
        wanted = self.wanted(steps)
        if wanted:
            self.call(range(self._workers.size))
        return wanted or self.called()

    def call(self, others: Sequence[int]) -> None:
        """Calls others, before `enter`: they enter too."""
        self._calls = True
        with self._liveness.guard():
            for rank in others:
                if rank != self._workers.rank:
                    self._workers.Isend([self._mine, 0, MPI.DOUBLE], rank, Tag.CONTROL).Free()  # empty: no buffer

    def enter(
        self,
        steps: int,
        answer: Callable[[], object] | None = None,
        words: Sequence[float] = (),
        callers: Sequence[int] | None = None,
    ) -> NDArray[np.float64]:
        """Agrees with all on the checkpoint. Blocks until all have entered.

        Args:
            steps: of this worker.
            answer: called while it waits, to answer others; the wait is over only once this returns something true.
            words: of this worker.
            callers: who may have called this worker; None are all.

        Returns:
            The words of all, a row for each, valid until the next time.
        """
        mine, everyone, answer = self._mine, self._all, answer or _always
        mine[:_HEAD] = steps, self._votes.take_request(), self._calls
        mine[_HEAD:] = words
        self._calls = False
        with self._liveness.guard():
            self._wait(self._started(self._workers.Iallgather, mine, everyone.reshape(-1)), answer)
            # Every call is received here, also one that crossed this worker's own: none is left for the next barrier.
            for rank in range(self._workers.size) if callers is None else callers:
                if rank != self._workers.rank and everyone[rank, _CALLS]:
                    self._wait(self._started(self._workers.Irecv, [None, 0, MPI.DOUBLE], rank, Tag.CONTROL), answer)
        self._entered = True
        self._votes.decide(int(everyone[:, (_REQUEST, _CALLS)].max()), int(everyone[:, _STEPS].max()))
        return everyone[:, _HEAD:]

    def leave(self) -> None:
        """Waits until all are ready to be saved: one that continued early would change what others have yet to save."""
        if not self._entered:  # all have met since
            raise AbandonedError
        self._entered = False
        with self._liveness.guard():
            self._wait(self._started(self._workers.Ibarrier), _always)

    def _wait(self, request: MPI.Request, answer: Callable[[], object]) -> None:
        try:
            self._waiter.soon(lambda: bool(answer()) and request.Test())
        except BaseException as error:
            keep_for_ever(request)
            self._abandon(error)
            raise

    def _started(self, start: Callable[..., MPI.Request], *arguments: Any) -> MPI.Request:
        """A call that has begun; where it fails because of a death, this meeting is abandoned."""
        try:
            return start(*arguments)
        except MPI.Exception as error:
            self._abandon(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        if self._survives and means_death(error):
            raise AbandonedError from error


def _always() -> bool:
    return True
