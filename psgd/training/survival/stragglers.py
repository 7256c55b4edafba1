"""A thread of each rank that sees for whom its node waits: it reports them, and drops them where that is asked for.

A rank that waits looks at the others of its node. One that computes meanwhile, or is stopped, is what the run waits
for: those that wait themselves are not. What others do, on this node or elsewhere, needs no message to know.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from mpi4py import MPI

from psgd.collectives.mpi.env import Variables
from psgd.kernels.notice import say
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.training.survival.board import Board

_LOOK_S = 0.1
_LAG_S = 0.5  # a thread that looks this late was stopped itself: what it saw before says nothing
_SOON_S = 2.0  # for those of its node to drop a rank


class Stragglers(threading.Thread):
    """Watches from `begin` to `end`.

    Args:
        board: of the node.
        job: all ranks.
        drop_s: ranks that others wait for longer are killed; None kills nobody.
        name: of a rank of the job.
        busy: whether this rank does something that may last, as an evaluation does.
        servers: ranks that are late only where they are stopped: what they wait for is not told.
    """

    def __init__(
        self,
        board: Board,
        job: MPI.Intracomm,
        drop_s: float | None,
        name: Callable[[int], str],
        busy: Callable[[], bool],
        servers: Collection[int] = (),
    ) -> None:
        super().__init__(name="psgd-stragglers", daemon=True)
        self._board, self._job, self._drop_s, self._name, self._busy = board, job, drop_s, name, busy
        self._servers = servers
        self._stall_s = Variables.read().stall_s
        self._over = threading.Event()
        self._looked = self._patient_from = time.monotonic_ns()
        self._reported = self._alone_said = 0  # since when this rank waited at the last report

    def around(
        self, act: Callable[..., Any], waits: Callable[[], object] = bool, still: Callable[[], object] = bool
    ) -> Callable[..., Any]:
        """The same call, in which this rank waits.

        Args:
            act: the call.
            waits: whether that is so this time; left out: it is never asked, and always so.
            still: whether this rank goes on to wait behind it.
        """

        def waiting(*words: Any, **named: Any) -> Any:
            self._board.wait(waits is bool or bool(waits()))
            try:
                return act(*words, **named)
            finally:
                self._board.wait(bool(still()))

        return waiting

    def run(self) -> None:
        period_s = min(_LOOK_S, (self._drop_s or _LOOK_S) / 4)
        while not self._over.wait(period_s):
            if MPI.Is_finalized() or self._job.Is_revoked():  # the run, or this attempt at it, has broken off
                return
            self.look(time.monotonic_ns())

    def end(self) -> None:
        """Nobody is reported or dropped any more. Blocks for a moment."""
        if self.is_alive():
            self._over.set()
            self.join()
        self._board.close()

    def look(self, now: int) -> None:
        """Once. Not for what was before a moment in which this rank was stopped."""
        board = self._board
        if now - self._looked > _LAG_S * 1e9:
            self._patient_from = now
        self._looked = now
        if self._busy():
            board.wait(False)
        board.beat()
        since = board.waits_since(board.rank)
        if since is None:
            return
        waited = now - max(since, self._patient_from)
        lags = {
            rank: now
            - max((board.beats_since if rank in self._servers else board.lags_since)(rank), self._patient_from)
            for rank in board.node
            if rank != board.rank
        }
        if self._drop_s is not None and waited > self._drop_s * 1e9:
            late = [rank for rank, lag in lags.items() if lag > self._drop_s * 1e9]
            for rank in _may_die(late):
                board.drop(rank, waited)
            if waited > (self._drop_s + _SOON_S) * 1e9 and not late:
                self._say_alone(since, waited)
        if waited > self._stall_s * 1e9:
            self._report(since, waited, [rank for rank, lag in lags.items() if lag > self._stall_s * 1e9])

    def _report(self, since: int, waited: int, late: list[int]) -> None:
        """Says once a wait who is late, on the first rank of the node that is not."""
        board = self._board
        if self._reported == since or not late:
            return
        if board.rank != min(rank for rank in board.node if rank not in late):
            return
        self._reported = since
        for rank in late:
            how = "is stopped" if board.stopped(rank) else "has not come to its next step"
            say(f"warning: {self._name(rank)} {how}, and others have waited for it for {waited / 1e9:.0f} s")

    def _say_alone(self, since: int, waited: int) -> None:
        """Says once a wait which ranks nobody can drop: those of other nodes on which nobody else of the job lives."""
        board = self._board
        if self._alone_said == since:
            return
        self._alone_said = since
        dead = _dead(self._job)
        living = [rank for rank in range(len(board.nodes)) if rank not in dead]
        homes = [board.nodes[rank] for rank in living]
        alone = [rank for rank in living if homes.count(board.nodes[rank]) == 1 and rank != board.rank]
        if alone and board.rank == min(rank for rank in living if rank not in alone):
            names = ", ".join(self._name(rank) for rank in alone)
            say(
                f"warning: others have waited for {waited / 1e9:.0f} s, for nobody of this node; nobody lives who "
                f"could drop {names}, alone on a node: the run waits"
            )


def _may_die(ranks: Iterable[int]) -> list[int]:
    """Those without which the run goes on."""
    return [rank for rank in ranks if not TOLERANCE.ends_at([rank])]


def _dead(job: MPI.Intracomm) -> set[int]:
    group = job.Get_failed()
    return set(group.Translate_ranks(None, job.Get_group())) if group.Get_size() else set()
