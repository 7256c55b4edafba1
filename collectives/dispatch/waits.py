"""What ranks that wait for long tell each other: so they find out that they wait in calls that will never meet.

Messages of a call show most differences by themselves, but not where ranks never exchange one: those that wait for each
other in different algorithms, in shared memory on one side and for messages on the other, or in a blocking call on one
side and for a request on the other. So a rank that has waited for a second tells the others in which call.
"""

from collections.abc import Callable

import numpy as np

from psgd.collectives.arguments.descriptor import Words, agree
from psgd.collectives.dispatch.control import Control, Waiting
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.shm import layout
from psgd.collectives.shm.shared_channel import SharedChannel

_KEPT = 64  # of a rank's last calls: it may be as far ahead of others, as the root of broadcasts is


class Waits:
    """This rank's calls of one lane, and what the others have told of theirs.

    Args:
        control: of the engine.
        hub: of the engine of blocking calls, which carries these reports for both.
        lane: 0 for blocking calls, 1 for others.
        descriptor: of the engine's current call.
        shared: of the engine, where all ranks are on one node and share memory: they tell each other there.

    Attributes:
        lane: as given.
        done: the current call is.
        exchanging: all ranks' descriptors of the current call are being exchanged, which finds each difference of
            those who take part.
        twin: of the other lane.
        other_calls: how many calls of the other lane this rank has started.
    """

    def __init__(
        self, control: Control, hub: Control, lane: int, descriptor: Words, shared: SharedChannel | None
    ) -> None:
        self.other_calls: Callable[[], int] = lambda: 0
        self.lane = lane
        self.done, self.exchanging = True, False
        self.twin: Waits | None = None
        self._control, self._hub = control, hub
        self._descriptor, self._shared = descriptor, shared
        self._past = np.zeros((_KEPT, layout.DESCRIPTOR_WORDS), np.int64)
        self._call = 0
        self._told: tuple[int, bool, bool] = (0, False, False)
        control.past, control.look_across, control.past_across = self.past, self.crosses, self._passed_across

    def begin(self, call: int) -> None:
        """A new call has begun, of that number; its descriptor is written later."""
        if self._shared is None:
            self._past[self._call % _KEPT] = self._descriptor
        self._call = call
        self.done = self.exchanging = False

    def past(self, call: int) -> Words | None:
        """The descriptor of an earlier call, where it is known still."""
        words = self._past[call % _KEPT]
        return words if self._shared is None and words[layout.CALL] == call else None

    def passed(self, call: int) -> Words | None:
        """A copy of the descriptor of a call that is done. Another thread may be in a later one."""
        if self._shared is not None or (call == self._call and not self.done):
            return None
        words = (self._descriptor if call == self._call else self._past[call % _KEPT]).copy()
        return words if words[layout.CALL] == call else None  # it has its number last

    def unheard(self) -> bool:
        """Whether others have failed in a call that this rank was done with, and have not heard of this rank yet."""
        return self.done and self._control.unheard(self._call)

    def compare(self, blocked: bool) -> None:
        """Tells the others of this rank's wait, once, and compares it with theirs.

        Args:
            blocked: this rank can do nothing else before the call is done.

        Raises:
            Mismatch: some rank waits in another call, or failed in one that this rank was done with.
        """
        if self._shared is not None:
            self._compare_here(self._shared, blocked)
            return
        self._tell(blocked)
        for theirs in list(self._hub.waits[self.lane].values()):
            mine = self._descriptor if theirs.call == self._call else self.past(theirs.call)
            both = self.exchanging and theirs.exchanging and theirs.call == self._call
            if mine is not None and not both and not agree(mine, theirs.descriptor):
                raise Mismatch(call=theirs.call)
        self._compare_across(blocked)

    def _compare_across(self, blocked: bool) -> None:
        """The same with waits of the other lane, whose last call this rank may be done with."""
        if blocked and self.twin is not None and self.twin.unheard():
            raise Mismatch(crossed=True)
        for theirs in list(self._hub.waits[1 - self.lane].values()):
            mine = self._passed_across(theirs.call)
            if mine is not None and not agree(mine, theirs.descriptor):
                raise Mismatch(call=theirs.call, crossed=True, mine=mine)
            if blocked and theirs.blocked:
                self._see_crossing(theirs.call, theirs.other_calls)

    def crosses(self) -> bool:
        """Whether a rank waits in a call of the other lane, where it never hears that this rank's call has failed.

        It may be done with this call, as the root of a broadcast is, and wait for one that this rank has not started.
        Tells the others of this rank's call, as they may have failed in theirs, or come to it later.
        """
        if self._shared is not None:
            return False
        self._tell(blocked=True)
        return any(
            theirs.blocked and theirs.call > self.other_calls()
            for theirs in list(self._hub.waits[1 - self.lane].values())
        )

    def _passed_across(self, call: int) -> Words | None:
        return None if self.twin is None else self.twin.passed(call)

    def _tell(self, blocked: bool) -> None:
        if self._told != (self._call, blocked, self.exchanging):
            self._told = (self._call, blocked, self.exchanging)
            self._hub.tell(Waiting(self.lane, self._descriptor, blocked, self.other_calls(), self.exchanging))
        self._hub.poll()

    def here(self) -> set[int]:
        """The other ranks that have told that they wait in this call, or in a later one."""
        return {rank for rank, theirs in self._hub.waits[self.lane].items() if theirs.call >= self._call}

    def _compare_here(self, shared: SharedChannel, blocked: bool) -> None:
        if blocked:
            shared.tell_wait(self._call, self.other_calls())
            for call, other_calls in shared.told_waits(1 - self.lane):
                self._see_crossing(call, other_calls)

    def _see_crossing(self, call: int, other_calls: int) -> None:
        """Raises where a rank waits in a call of the other lane that this one has not started, and the reverse."""
        if self._is_crossing(call, other_calls):
            raise Mismatch(crossed=True)

    def _is_crossing(self, call: int, other_calls: int) -> bool:
        return call > self.other_calls() and other_calls < self._call
