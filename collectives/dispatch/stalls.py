"""What a waiting rank looks after between two tests: MPI's progress, other calls, lost ranks, and how long it waits."""

import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from mpi4py import MPI

from psgd.collectives.dispatch import contract
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.shm import layout
from psgd.collectives.dispatch.errors import WAITING
from psgd.kernels.errors import PeerLostError

if TYPE_CHECKING:
    from psgd.collectives.dispatch.engine import Engine

_LOOK_S = 0.1
_STALL_REPORT_S = 2.0
_FORWARD_S = 0.3  # for mpiexec to take what was said: it drops the rest when a rank aborts


class Background(Protocol):
    """What goes on beside the current call."""

    def advance(self) -> None:
        """Does what can be done now."""


class Backgrounds:
    """Some of them, none of which is kept alive. Threads may add and take away while others advance them."""

    def __init__(self) -> None:
        self._all: tuple[weakref.ref[Background], ...] = ()
        self._lock = threading.Lock()

    def add(self, one: Background) -> None:
        """Adds one, unless it is there."""
        with self._lock:
            self._all = (*self._without(one), weakref.ref(one))

    def discard(self, one: Background) -> None:
        """Takes one away, if it is there."""
        with self._lock:
            self._all = self._without(one)

    def advance(self) -> None:
        """Advances all."""
        for each in self._all:
            one = each()
            if one is not None:
                one.advance()

    def _without(self, one: Background) -> "tuple[weakref.ref[Background], ...]":
        return tuple(each for each in self._all if each() not in (None, one))


BACKGROUND = Backgrounds()
"""Whatever every wait of this process carries forward: another rank may wait for it first."""


class Watch:
    """Called between two tests of an engine's call.

    Args:
        engine: whose calls it watches.
        stall_s: after so long a wait it says who has not come.
        timeout_s: after so long a wait it ends the job.
    """

    def __init__(self, engine: "Engine", stall_s: float, timeout_s: float) -> None:
        self._engine = engine
        self._stall_s = stall_s
        self._timeout_s = timeout_s
        self._since = self._next_look = 0.0
        self._asked = self._reported = 0

    def begin(self) -> None:
        """A new call has begun."""
        self._since = self._next_look = 0.0

    def __call__(self) -> None:
        """Makes progress, and now and then sees whether anything is wrong.

        Raises:
            Mismatch: over messages, a rank has failed in its call or left it.
            PeerLostError: a rank of this node ended or left a call in the middle.
        """
        engine = self._engine
        if engine.control.poll() and not engine.local:
            raise Mismatch
        engine.channel.poll()
        if engine.leaders is not engine.channel:
            engine.leaders.poll()
        BACKGROUND.advance()
        now = time.perf_counter()
        if now >= self._next_look:
            self._look(now)

    def _look(self, now: float) -> None:
        self._since = self._since or now
        self._next_look = now + _LOOK_S
        waited = now - self._since
        if waited < _LOOK_S:
            return
        engine = self._engine
        if engine.node is not None:
            if lost := engine.node.lost():
                raise PeerLostError(f"{contract.describe(engine.line)}: {contract.name_ranks(lost)} ended")
            self._see_aborts()
        if waited > self._stall_s:
            self._report_stall(waited)
        if waited > self._timeout_s:
            print(
                f"psgd: error: rank {engine.rank}: {contract.describe(engine.line)}: waited {waited:.0f} s, "
                f"more than PSGD_TIMEOUT={self._timeout_s:g}; ending the job",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(_FORWARD_S)
            MPI.COMM_WORLD.Abort(1)
            os._exit(1)  # under ULFM the abort of one rank lets the others run

    def _see_aborts(self) -> None:
        from psgd.collectives.shm import direct

        engine, node = self._engine, self._engine.node
        assert node is not None
        if (place := direct.aborted(engine.node_at)) >= 0 and place != node.rank:
            raise PeerLostError(
                f"{contract.describe(engine.line)}: rank {node.ranks[place]} left a call in the middle; "
                "its own error says why"
            )

    def _report_stall(self, waited: float) -> None:
        """Says once a call on stderr, from the first rank that has come, who has not."""
        engine = self._engine
        engine.line[layout.CALL] = engine.calls
        if engine.local and not engine.checks:  # else a rank may wait before it has published anything
            absent = engine.behind()
        else:
            if self._asked < engine.calls:
                self._asked = engine.calls
                engine.control.say(WAITING, engine.line)
            if waited < self._stall_s + _STALL_REPORT_S:
                return
            here = {engine.rank, *engine.control.waiting(engine.calls)}
            absent = [rank for rank in range(engine.size) if rank not in here]
        if self._reported == engine.calls or not absent:
            return
        self._reported = engine.calls
        if engine.rank == min(rank for rank in range(engine.size) if rank not in absent):
            print(
                f"psgd: warning: {contract.describe(engine.line)}, call {engine.calls} of this communicator: "
                f"{contract.name_ranks(absent)} {'has' if len(absent) == 1 else 'have'} not come for {waited:.0f} s",
                file=sys.stderr,
                flush=True,
            )
