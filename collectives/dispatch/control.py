"""Messages between ranks beside a call's own: that one failed, left its call, or has been waiting in it for long."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.arguments.descriptor import STARTED, Words, agree
from psgd.collectives.dispatch.contract import describe, judge
from psgd.collectives.mpi.agreement import TEXT_BYTES, Mismatch, name_ranks, packed, unpacked
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.shm import layout
from psgd.kernels.errors import AgreedContractError, Error, PeerLostError

FAILED, WAITING, LEFT, CROSSED = 1, 2, 3, 4
_PATIENCE_S = 5.0
_ACROSS_S = 0.5  # before it looks
_LAG_S = 1.0  # for a rank to finish a call that those who failed in a later one are done with
_REPORT = np.dtype(
    [
        ("token", "i8"),
        ("kind", "i8"),
        ("lane", "i8"),
        ("blocked", "i8"),
        ("other_calls", "i8"),
        ("exchanging", "i8"),
        ("descriptor", "i8", layout.DESCRIPTOR_WORDS),
        ("text", "u1", TEXT_BYTES),  # the last one: not sent where there is none
    ]
)
_HEAD_BYTES = _REPORT.itemsize - TEXT_BYTES
_HEARERS = 64  # of a rank that waits, at most: these see every difference from their own calls


@dataclass(frozen=True)
class Waiting:
    """What a rank that waits for long has told of its call.

    Attributes:
        lane: 0 where the call is a blocking one, else 1.
        descriptor: of the call, with its number among those of its lane.
        blocked: its rank can do nothing else before the call is done.
        other_calls: of the other lane, that the rank had started by then.
        exchanging: its rank takes part in an exchange of all ranks' descriptors of that call.
    """

    lane: int
    descriptor: Words
    blocked: bool
    other_calls: int
    exchanging: bool = False

    @property
    def call(self) -> int:
        """The number of the call."""
        return int(self.descriptor[layout.CALL])


class Control:
    """Reports of one engine's communicator. All methods but `settle` return at once.

    Args:
        comm: of the engine.
        lane: 0 for the engine of blocking calls, else 1.
        token: the same on all ranks, and of this communicator alone. MPIs give the identity of a freed communicator to
            later ones, with what nobody had received yet.

    Attributes:
        waits: what ranks that wait for long have told last, by lane and rank.
        past: gives the descriptor of this rank's call of a number, where it is known.
        past_across: the same of the other lane, for calls that are done.
        look_across: whether a rank waits in a call of the other lane, which this rank will not come to.
        twin: of the other engine: it hears of a failure that concerns both.
        crossed: the failure is one of both engines.
    """

    def __init__(self, comm: MPI.Intracomm, lane: int = 0, token: int = 0) -> None:
        self.waits: tuple[dict[int, Waiting], dict[int, Waiting]] = ({}, {})
        self.past: Callable[[int], Words | None] = lambda call: None
        self.past_across: Callable[[int], Words | None] = lambda call: None
        self.look_across: Callable[[], bool] = lambda: False
        self.twin: Control | None = None
        self.crossed = self._settled = False
        self._comm, self._lane, self._token = comm, lane, token
        self._told = self._heard = 0
        self._status = MPI.Status()
        self._polling = threading.Lock()  # both engines look at that of blocking calls, each perhaps in its own thread
        self._sending: list[tuple[MPI.Request, NDArray[np.uint8]]] = []
        self._failures: dict[int, tuple[int, Words, str]] = {}  # lane, descriptor and text of each rank's
        self._left: dict[int, str] = {}
        self._earliest: float = math.inf  # call of this lane that a rank failed in or left
        self._lag_ends = 0.0

    def poll(self) -> bool:
        """Receives reports, which also makes MPI progress. True once some rank has failed or left."""
        if self._polling.acquire(blocking=False):
            try:
                while (message := self._comm.Improbe(MPI.ANY_SOURCE, Tag.CONTROL, self._status)) is not None:
                    data = np.zeros(_REPORT.itemsize, np.uint8)
                    message.Recv(data)
                    report = data.view(_REPORT)[0]
                    if report["token"] == self._token:
                        self._take(self._status.source, report)
            finally:
                self._polling.release()
        return bool(self._failures or self._left)

    def concerns(self, call: int) -> bool:
        """Whether a failure that was reported ends this rank's call of that number.

        Whoever failed in a later call is done with this one, so it can still end as it should: it goes on for a second.
        Not longer, as others that it waits for may have failed too.
        """
        if self._earliest <= call:
            return True
        now = time.monotonic()
        self._lag_ends = self._lag_ends or now + _LAG_S
        return now > self._lag_ends

    def _take(self, source: int, report: Any) -> None:
        kind, words = int(report["kind"]), report["descriptor"].copy()
        lane = int(report["lane"])
        if kind != WAITING and lane == self._lane:
            self._earliest = min(self._earliest, int(words[layout.CALL]))
        if kind == WAITING:
            self._heard += 1
            self.waits[lane][source] = Waiting(
                lane, words, bool(report["blocked"]), int(report["other_calls"]), bool(report["exchanging"])
            )
        elif kind == LEFT:
            self._left[source] = unpacked(report["text"])
        else:
            self.crossed |= kind == CROSSED
            self._failures[source] = (lane, words, unpacked(report["text"]))

    def tell(self, waiting: Waiting) -> None:
        """Starts to tell the other ranks, where they are very many the first ones, what this rank waits in."""
        self._told += 1
        self._send(WAITING, waiting.descriptor, "", _HEARERS, waiting)

    def unheard(self, call: int) -> bool:
        """Whether a rank has failed in a call of this lane up to that number, or left it, and has no answer yet."""
        return self.poll() and not self._settled and self._earliest <= call

    def drain(self) -> None:
        """Receives all that was told and is still on its way: else a later communicator may get it. Collective, blocks.

        For a while only, as a rank that failed does not take part.
        """
        everyone = np.empty(self._comm.size, np.int64)
        request = self._comm.Iallgather(np.array([self._told], np.int64), everyone)
        limit = time.monotonic() + _PATIENCE_S
        while not request.Test():
            if self.poll() or time.monotonic() > limit:
                keep_for_ever(request)
                return
            time.sleep(1e-4)
        due = int(everyone.sum()) - self._told if self._comm.rank < _HEARERS else 0
        while self._heard < due and time.monotonic() < limit:
            self.poll()

    def leave(self, descriptor: Words, why: str) -> None:
        """Starts to tell all other ranks that this one left its call."""
        self._send(LEFT, descriptor, why)

    def _send(
        self,
        kind: int,
        descriptor: Words,
        text: str,
        peers: int | None = None,
        waiting: Waiting | None = None,
        lane: int | None = None,
    ) -> None:
        data = np.zeros(_REPORT.itemsize, np.uint8)
        report = data.view(_REPORT)
        report["token"], report["kind"] = self._token, kind
        report["descriptor"] = descriptor
        report["text"] = packed(text)
        report["lane"] = self._lane if lane is None else lane
        if waiting is not None:
            report["lane"], report["blocked"] = waiting.lane, waiting.blocked
            report["other_calls"], report["exchanging"] = waiting.other_calls, waiting.exchanging
        sent = data if text else data[:_HEAD_BYTES]
        self._sending = [each for each in self._sending if not each[0].Test()]
        for rank in range(min(peers or self._comm.size, self._comm.size)):
            if rank != self._comm.rank:
                self._sending.append((self._comm.Isend(sent, rank, Tag.CONTROL), data))

    def settle(self, descriptor: Words, text: str, found: Mismatch | None = None) -> Error:
        """Reports to all ranks that the call failed here, waits for their reports, and makes the error.

        Blocks until all ranks have reported, 5 s at most: a rank in no call reports nothing.

        Args:
            descriptor: of this rank's call.
            text: what is wrong with its own arguments; empty where nothing is.
            found: how this rank came to know.
        """
        found = found or Mismatch()
        self._settled = True
        self.crossed |= found.crossed
        if self._gone():
            return self._departed(descriptor)
        lane, mine = self._disagreed(descriptor, found)
        self._send(CROSSED if self.crossed else FAILED, mine, text, lane=lane)
        self._failures[self._comm.rank] = (lane, mine, text)
        began = time.monotonic()
        limit = began + _PATIENCE_S
        told_twin = False
        while True:
            complete = self.poll() and len(self._failures) == self._comm.size
            # Who does not report may wait in the other lane, where it does not hear of this.
            if not (self.crossed or complete) and time.monotonic() > began + _ACROSS_S:
                self.crossed = self.look_across()
            # Others may have found out first. Whoever waits in the other lane needs to hear of this from each rank.
            if self.crossed and not told_twin:
                told_twin = True
                self._tell_twin(mine, text, lane)
                limit = time.monotonic() + _PATIENCE_S
            if complete or self._gone() or time.monotonic() > limit:
                break
            time.sleep(1e-4)
        if self._gone():
            return self._departed(descriptor)
        if not complete and found.peer is not None:  # which is in no call any more
            self._failures.setdefault(found.peer[0], (self._lane, found.peer[1], ""))
        ranks = sorted(self._failures)
        descriptors = [self._failures[rank][1] for rank in ranks]
        texts = [self._failures[rank][2] for rank in ranks]
        if self.crossed:
            for rank, words in zip(ranks, descriptors, strict=True):
                words[layout.SIGNATURE] |= STARTED if self._failures[rank][0] else 0
        if not any(texts) and all(agree(descriptors[0], each) for each in descriptors):
            return AgreedContractError(
                f"collective call {describe(descriptor)}: {name_ranks(ranks)} received a message of another call"
            )
        return judge(ranks, descriptors, texts)

    def _disagreed(self, descriptor: Words, found: Mismatch) -> tuple[int, Words]:
        """The lane and a copy of this rank's call that others do not agree with: it may be done with that one."""
        if found.mine is not None:
            return 1 - self._lane, found.mine.copy()
        mine, reports = descriptor.copy(), list(self._failures.values())
        if self.crossed:
            if self.twin is not None:
                reports += self.twin._failures.values()
            for lane, theirs, _ in reports:
                before = (self.past if lane == self._lane else self.past_across)(int(theirs[layout.CALL]))
                if before is not None and not agree(before, theirs):
                    return lane, before.copy()
            return self._lane, mine
        calls = [found.call, *(int(theirs[layout.CALL]) for _, theirs, _ in reports)]
        failed = min(filter(None, calls), default=0)
        if 0 < failed < mine[layout.CALL] and (before := self.past(failed)) is not None:
            mine = before.copy()  # this rank was done with the call that the others failed in
        return self._lane, mine

    def _gone(self) -> dict[int, str]:
        """The ranks that left a call, and why."""
        return self._left or (self.twin._left if self.crossed and self.twin is not None else {})

    def _tell_twin(self, mine: Words, text: str, lane: int) -> None:
        if self.twin is not None:
            self.twin._send(CROSSED, mine, text, lane=lane)

    def _departed(self, descriptor: Words) -> Error:
        reasons = "; ".join(
            f"rank {rank} left a call before its end: {text}" for rank, text in sorted(self._gone().items())
        )
        return PeerLostError(f"{describe(descriptor)}: {reasons}")
