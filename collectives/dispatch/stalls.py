"""What a waiting rank looks after between two tests: MPI's progress, other calls, lost ranks, and how long it waits."""

import os
import time

from mpi4py import MPI

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments.descriptor import Words
from psgd.collectives.dispatch.contract import describe
from psgd.collectives.dispatch.control import Control
from psgd.collectives.dispatch.waits import Waits
from psgd.collectives.mpi.agreement import Mismatch, name_ranks
from psgd.collectives.mpi.patience import JUMP_S
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.collectives.shm.shared_channel import SharedChannel
from psgd.kernels.errors import PeerLostError
from psgd.kernels.notice import say

_LOOK_S = 0.1
_COMPARE_S = 1.0
_LAG_S = 1.0  # for messages of a rank that has left a later call
_STALL_REPORT_S = 2.0
_FORWARD_S = 0.3  # for mpiexec to forward the text: it drops the rest when a rank aborts


class StallWatchdog:
    """Called between two tests of an engine's call.

    Args:
        comm: of the engine.
        control: reports of other ranks.
        waits: what ranks that wait for long tell each other.
        channels: whose receives make progress.
        shared: the node's ranks, where they share memory.
        descriptor: of the engine's current call.
        published: every rank of `comm` is on this node and publishes a step before it waits.
        stall_s: after so long a wait it reports which ranks are missing.
        timeout_s: after so long a wait it ends the job.

    Attributes:
        blocked: this rank can do nothing else before the call is done.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        control: Control,
        waits: Waits,
        channels: tuple[Channel, ...],
        shared: SharedChannel | None,
        descriptor: Words,
        published: bool,
        stall_s: float,
        timeout_s: float,
    ) -> None:
        self._rank, self._size = comm.rank, comm.size
        self.blocked = True
        self._control, self._waits, self._channels = control, waits, channels
        self._shared, self._descriptor = shared, descriptor
        self._published = published
        self._stall_s = stall_s
        self._timeout_s = timeout_s
        self._since = self._next_look = self._looked = 0.0
        self._call = self._reported = 0

    def begin(self, call: int) -> None:
        """A new call has begun, of that number."""
        self._call = call
        self._waits.begin(call)
        self._since = self._next_look = 0.0

    def __call__(self) -> None:
        """Makes progress, and now and then sees whether anything is wrong.

        Raises:
            Mismatch: a rank has failed in its call or left it, or waits in another one.
            PeerLostError: a rank of this node ended or left a call in the middle.
        """
        if self._control.poll() and self._control.concerns(self._call):
            raise Mismatch
        for channel in self._channels:
            channel.poll()
        BACKGROUND.advance()
        now = time.perf_counter()
        if now >= self._next_look:
            self._look(now)

    def _look(self, now: float) -> None:
        if self._since and now - self._looked > JUMP_S:  # stopped, or nobody has tested: that was no waiting
            self._since += now - self._looked
        self._since, self._looked = self._since or now, now
        self._next_look = now + _LOOK_S
        waited = now - self._since
        if waited < _LOOK_S:
            return
        if self._shared is not None:
            self._see_lost(self._shared, waited)
        if waited > _COMPARE_S:
            self._waits.compare(self.blocked)
        if waited > self._stall_s:
            self._report_stall(waited)
        if waited > self._timeout_s:
            say(
                f"error: rank {self._rank}: {describe(self._descriptor)}: waited {waited:.0f} s, "
                f"more than PSGD_TIMEOUT={self._timeout_s:g}; ending the job"
            )
            time.sleep(_FORWARD_S)
            MPI.COMM_WORLD.Abort(1)
            os._exit(1)  # under ULFM the abort of one rank lets the others run

    def _see_lost(self, shared: SharedChannel, waited: float) -> None:
        node = shared.node
        if lost := node.lost():
            raise PeerLostError(f"{describe(self._descriptor)}: {name_ranks(lost)} ended")
        if left := shared.left(patient=waited < _LAG_S):
            raise PeerLostError(
                f"{describe(self._descriptor)}: {name_ranks([node.ranks[place] for place in left])} left a call before "
                "its end; its own error says why"
            )

    def _report_stall(self, waited: float) -> None:
        """Reports once a call on stderr, from the first rank that is in it, which ranks are not."""
        lag = "not arrived"
        if self._shared is not None and self._published:
            absent = self._shared.behind()
            if self._shared.met:
                lag = "arrived, but made no progress"
        else:
            if waited < self._stall_s + _STALL_REPORT_S:  # who came just now has not told yet
                return
            if self._waits.lane:
                lag = "not arrived, or not tested its request,"
            here = {self._rank, *self._waits.here()}
            absent = [rank for rank in range(self._size) if rank not in here]
        if self._reported == self._call or not absent:
            return
        self._reported = self._call
        if self._rank == min(rank for rank in range(self._size) if rank not in absent):
            say(
                f"warning: {describe(self._descriptor)}, call {self._call} of this communicator: "
                f"{name_ranks(absent)} {'has' if len(absent) == 1 else 'have'} {lag} for {waited:.0f} s"
            )
