"""What happens when a call fails, and the error that each rank raises."""

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments.descriptor import Words
from psgd.collectives.dispatch.contract import describe, judge
from psgd.collectives.dispatch.control import Control
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.shm import layout
from psgd.collectives.shm.shared_channel import SharedChannel
from psgd.kernels.errors import AgreedError, ContractError, PeerLostError


class Failures:
    """Ends calls that raised an exception, for one engine.

    Args:
        comm: of the engine.
        channel: of the engine.
        shared: with the ranks of this node, where they share memory.
        descriptor: of the engine's current call.
        control: reports of other ranks.

    Attributes:
        control: as given.
        twin: of the other engine, which a failure of both breaks too.
        text: what is wrong with this rank's arguments of the current call; empty where they are right.
        broken: why the engine cannot be used any more; empty while it can.
        at_end: called when that happens: ends kernels that wait for other ranks.
        disagreed: ranks have disagreed on a call since this was last reset, on all of them.
        untold: the error of a request that broke the engine, until the program hears it.
    """

    def __init__(
        self, comm: MPI.Intracomm, channel: Channel, shared: SharedChannel | None, descriptor: Words, control: Control
    ) -> None:
        self.control = control
        self.twin: Failures | None = None
        self.text = ""
        self.broken = ""
        self.at_end: Callable[[], None] | None = None
        self.disagreed = False
        self.untold: BaseException | None = None
        self._comm, self._channel = comm, channel
        self._shared, self._descriptor = shared, descriptor
        self._local = shared is not None and shared.node.size == comm.size

    def check(self) -> None:
        """Refuses a new call where an earlier one has left the engine unusable.

        Raises:
            ContractError: it has.
            Error: that of a request which nobody has waited for yet.
        """
        if self.broken:
            error, self.untold = self.untold, None
            if error is not None:
                raise error
            raise ContractError(f"this communicator cannot be used any more, create a new one: {self.broken}")

    def ended(self, steps: Steps, error: BaseException) -> BaseException:
        """Ends a call that raised `error`: reports it to ranks that do not know, and returns what to raise here."""
        if self.broken:
            return error
        if not isinstance(error, AgreedError):
            keep_for_ever(steps)  # and with it the requests that may still be on their way
        return self._failed(error)

    def keep(self, error: BaseException) -> BaseException:
        """Keeps a request's error for `check`, if it broke the engine: the program may start another call first."""
        if self.broken and self.untold is None:
            self.untold = error
        return error

    def abandon(self, error: BaseException) -> None:
        """Breaks the engine if an exception hit between a kernel's turns, where there were no steps to end."""
        if self._shared is not None and self._shared.in_call and not self.broken:
            self._failed(error)

    def disagreement(self) -> Exception:
        """What to raise where the descriptors of the node's ranks differ."""
        if not self._local:
            return Mismatch(self.text)  # the other nodes must know of it
        assert self._shared is not None
        return judge(self._shared.node.ranks, *self._shared.descriptors())

    def _failed(self, error: BaseException) -> BaseException:
        if isinstance(error, Mismatch):
            agreed = self.control.settle(self._descriptor, str(error), error)
            self._break(str(agreed))
            if self.control.crossed and self.twin is not None:
                self.twin._break(str(agreed))
            return agreed
        if isinstance(error, AgreedError):
            self.disagreed = True
            self._descriptor[layout.CALL] = 0  # settled: what was told of waits in this call is no news in a later one
            return error
        if isinstance(error, MPI.Exception) and error.Get_error_class() in _REFUSALS:
            return error  # by MPI, of arguments that are the same everywhere
        if isinstance(error, MPI.Exception) and error.Get_error_class() in _lost_classes():
            error = PeerLostError(f"{describe(self._descriptor)}: MPI reports a lost rank: {error}")
        self._break(f"{type(error).__name__} in {describe(self._descriptor)}: {error}")
        if self._shared is not None:
            self._shared.abort()
        if not self._local and not isinstance(error, PeerLostError):
            self.control.leave(self._descriptor, f"{type(error).__name__}: {error}")
        return error

    def _break(self, why: str) -> None:
        """Makes the engine unusable. Messages may still be on their way from and to memory: that is never freed."""
        self.broken = why
        if self.at_end is not None:
            self.at_end()
        keep_for_ever(self._channel)
        keep_for_ever(self._comm)


_REFUSALS = (MPI.ERR_OP, MPI.ERR_TYPE, MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COUNT)


def _lost_classes() -> tuple[Any, ...]:
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    return tuple(getattr(MPI, name) for name in names if hasattr(MPI, name))
