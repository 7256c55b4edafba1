"""What happens when a call fails: reports to the other ranks, and the error that each of them raises."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments.descriptor import Words, agree
from psgd.collectives.dispatch.contract import describe, judge
from psgd.collectives.mpi.agreement import TEXT_BYTES, Mismatch, name_ranks, packed, unpacked
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.shm import layout
from psgd.collectives.shm.shared_channel import SharedChannel
from psgd.kernels.errors import AgreedContractError, AgreedError, ContractError, Error, PeerLostError

FAILED, WAITING, LEFT = 1, 2, 3
_PATIENCE_S = 5.0
_REPORT = np.dtype([("kind", "i8"), ("descriptor", "i8", layout.DESCRIPTOR_WORDS), ("text", "u1", TEXT_BYTES)])


class Control:
    """Reports of one communicator. All methods but `settle` return at once."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._status = MPI.Status()
        self._sending: list[tuple[MPI.Request, NDArray[np.uint8]]] = []
        self._failures: dict[int, tuple[Words, str]] = {}
        self._waiting: dict[int, int] = {}
        self._left: dict[int, str] = {}

    def poll(self) -> bool:
        """Receives reports, which also makes MPI progress. True once some rank has failed or left."""
        status = self._status
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, Tag.CONTROL, status)) is not None:
            data = np.zeros(_REPORT.itemsize, np.uint8)
            message.Recv(data)
            report = data.view(_REPORT)[0]
            if report["kind"] == FAILED:
                self._failures[status.source] = (report["descriptor"].copy(), unpacked(report["text"]))
            elif report["kind"] == LEFT:
                self._left[status.source] = unpacked(report["text"])
            else:
                self._waiting[status.source] = int(report["descriptor"][layout.CALL])
        return bool(self._failures or self._left)

    def send(self, kind: int, descriptor: Words, text: str = "") -> None:
        """Starts to send a report to all other ranks; where they are very many, to the first ones while waiting."""
        data = np.zeros(_REPORT.itemsize, np.uint8)
        report = data.view(_REPORT)
        report["kind"] = kind
        report["descriptor"] = descriptor
        report["text"] = packed(text)
        peers = self._comm.size if kind != WAITING else min(64, self._comm.size)
        for rank in range(peers):
            if rank != self._comm.rank:
                self._sending.append((self._comm.Isend(data, rank, Tag.CONTROL), data))

    def waiting(self, call: int) -> list[int]:
        """The other ranks that have reported that they wait in a call."""
        self.poll()
        return [rank for rank, theirs in self._waiting.items() if theirs == call]

    def settle(self, descriptor: Words, text: str) -> Error:
        """Reports to all ranks that the call failed here, waits for their reports, and makes the error.

        Blocks until all ranks have reported, 5 s at most: a rank in no call reports nothing.

        Args:
            descriptor: of this rank's call.
            text: what is wrong with its own arguments; empty where nothing is.
        """
        if self._left:
            return self._departed(descriptor)
        self.send(FAILED, descriptor, text)
        self._failures[self._comm.rank] = (descriptor.copy(), text)
        limit = time.monotonic() + _PATIENCE_S
        while self.poll() and len(self._failures) < self._comm.size and not self._left and time.monotonic() < limit:
            time.sleep(1e-4)
        if self._left:
            return self._departed(descriptor)
        ranks = sorted(self._failures)
        descriptors = [self._failures[rank][0] for rank in ranks]
        texts = [self._failures[rank][1] for rank in ranks]
        if not any(texts) and all(agree(descriptors[0], each) for each in descriptors):
            return AgreedContractError(
                f"collective call {describe(descriptor)}: {name_ranks(ranks)} got a message of another call"
            )
        return judge(ranks, descriptors, texts)

    def _departed(self, descriptor: Words) -> Error:
        reasons = "; ".join(
            f"rank {rank} left a call in the middle: {text}" for rank, text in sorted(self._left.items())
        )
        return PeerLostError(f"{describe(descriptor)}: {reasons}")


class Failures:
    """Ends calls that raised an exception, for one engine.

    Args:
        comm: of the engine.
        channel: of the engine.
        shared: with the ranks of this node, where they share memory.
        descriptor: of the engine's current call.

    Attributes:
        control: reports of other ranks.
        text: what is wrong with this rank's arguments of the current call; empty where they are right.
        broken: why the engine cannot be used any more; empty while it can.
        at_end: called when that happens: ends kernels that wait for other ranks.
        disagreed: ranks have disagreed on a call since this was last reset, on all of them.
    """

    def __init__(self, comm: MPI.Intracomm, channel: Channel, shared: SharedChannel | None, descriptor: Words) -> None:
        self.control = Control(comm)
        self.text = ""
        self.broken = ""
        self.at_end: Callable[[], None] | None = None
        self.disagreed = False
        self._comm, self._channel = comm, channel
        self._shared, self._descriptor = shared, descriptor
        self._local = shared is not None and shared.node.size == comm.size

    def check(self) -> None:
        """Refuses a new call where an earlier one has left the engine unusable.

        Raises:
            ContractError: it has.
        """
        if self.broken:
            raise ContractError(f"this communicator cannot be used any more, make a new one: {self.broken}")

    def ended(self, steps: Steps, error: BaseException) -> BaseException:
        """Ends a call that raised `error`: reports it to ranks that do not know, and returns what to raise here."""
        if self.broken:
            return error
        if not isinstance(error, AgreedError):
            keep_for_ever(steps)  # and with it the requests that may still be on their way
        return self._failed(error)

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
            agreed = self.control.settle(self._descriptor, str(error))
            self._break(str(agreed))
            return agreed
        if isinstance(error, AgreedError):
            self.disagreed = True
            return error
        if isinstance(error, MPI.Exception) and error.Get_error_class() in _REFUSALS:
            return error  # by MPI, of arguments that are the same everywhere
        if isinstance(error, MPI.Exception) and error.Get_error_class() in _lost_classes():
            error = PeerLostError(f"{describe(self._descriptor)}: MPI reports a lost rank: {error}")
        self._break(f"{type(error).__name__} in {describe(self._descriptor)}: {error}")
        if self._shared is not None:
            self._shared.abort()
        if not self._local and not isinstance(error, PeerLostError):
            self.control.send(LEFT, self._descriptor, f"{type(error).__name__}: {error}")
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
