"""The server loop of a run that survives the death of its workers.

A worker that dies leaves every quorum and the minimum of the clocks, as one that is done. A push of it that was not
answered is not applied, and counts as not made. What it had left of its samples goes to those that still train, who
are told with their next answer; where all others were done already, they come back for it.
"""

import time
from typing import cast

import numpy as np

from psgd.kernels.errors import PeerLostError
from psgd.server.log import LogEntry
from psgd.server.server import Server
from psgd.server.surviving.hand_over import Deciding, HandOver, Lost
from psgd.server.surviving.server_side import SurvivingServerTransport
from psgd.server.wire import Header, MessageKind


class SurvivingServer(Server):
    """Its transport is a `SurvivingServerTransport`, or a fake of the same kind.

    Where there are several servers, their transports give all the same events in the same order
    (`psgd.server.surviving.agreed_server_side`), so that each one decides alike and none follows another's log.

    Attributes:
        hand_over: shares out the samples of the dead; to be set before `run`.
    """

    hand_over: HandOver
    all_decide = True

    def _initialize(self) -> None:
        self._dead: set[int] = set()
        self._held: set[int] = set()  # workers that have pushed and are not released
        self._untold: set[int] = set()  # workers that have been sent something which they read with their next answer
        super()._initialize()
        self._wire.begun = True
        self.hand_over.started()

    @property
    def _wire(self) -> SurvivingServerTransport:
        return cast(SurvivingServerTransport, self.transport)

    def _take(self, header: Header | Lost) -> None:
        if isinstance(header, Lost):
            self._lose(header.worker)
            return
        worker = header.worker
        if header.kind == MessageKind.DONE and worker in self._untold:
            # It does not know yet that it has more to do.
            self._clocks.check(header)
            self.hand_over.pushed(worker, self._clocks.drawn[worker])
            self._log.append(LogEntry(release=(worker,), stays_open=True))
            return
        super()._take(header)
        if header.kind == MessageKind.PUSH:
            self._held.add(worker)
        if header.kind == MessageKind.PUSH and worker in self._untold:
            self.hand_over.pushed(worker, header.position)

    def _lose(self, worker: int) -> None:
        """Drops a worker from all that waits for it, and shares out what it had left."""
        now, strategy = time.perf_counter(), cast(Deciding, self.strategy)
        self._dead.add(worker)
        self._held.discard(worker)
        self.position.lose(worker)
        if (push := self._pending.pop(worker, None)) is not None:
            self._give_up(push)
        entries: tuple[LogEntry, ...] = ()
        if worker not in self._done:
            self._done.add(worker)
            strategy.on_lost(worker)
            entries = self.strategy.on_done(worker, now)
        everyone = set(range(self._options.workers))
        if not (living := everyone - self._dead):
            self.hand_over.not_survived()
            raise PeerLostError("all workers have died")
        takers = sorted(everyone - self._done) or sorted(living)
        drawn, applied = self._clocks.drawn, self._clocks.drawn
        waiting = {each: drawn[each] for each in self._held | (self._done & living)}
        for each, pending in self._pending.items():
            applied[each] -= pending.samples
        samples, messages = self.hand_over.lost(worker, applied, waiting, takers)
        self._answer.view = view = len(self._dead)
        if self._done == everyone:
            if samples:
                self._done.difference_update(takers)
                strategy.on_back(takers)
                entries = (*entries, LogEntry(release=tuple(takers)))
            else:
                messages = {}
                entries = (*entries, LogEntry(release=tuple(sorted(living)), ends_log=True))
        self._wire.tell({taker: np.array([view, *words], np.int64) for taker, words in messages.items()})
        self._untold.update(messages)
        self._log.extend(entries)

    def _execute(self, entry: LogEntry) -> None:
        """Without what the dead had a part in."""
        group = []
        for member in entry.group:
            if not self._pending[member.worker].samples or self._wire.whole(member.worker):
                group.append(member)
            else:
                self._give_up(self._pending.pop(member.worker))
        self._untold.difference_update(entry.release)
        self._held.difference_update(entry.release)
        release = tuple(worker for worker in entry.release if worker not in self._dead)
        super()._execute(entry._replace(group=tuple(group), release=release))

    def _give_up(self, push: Header) -> None:
        self._clocks.take_back(push)
        self.metrics.dropped[push.worker] += push.samples > 0
