"""The server loop of a run that survives the death of servers, too.

What was pushed and not applied when a server died is withdrawn, and pushed again. What was applied stays: all holders
have it. At the end servers stay until each worker has the final parameters as a whole.
"""

from typing import cast

from psgd.checkpoint.state import State
from psgd.server.log import LogEntry
from psgd.server.replicas.held_shards import HeldShards
from psgd.server.replicas.holders import Holders
from psgd.server.replicas.replicated_server_side import LostServer, ReplicatedServerTransport
from psgd.server.surviving.hand_over import Deciding, Lost
from psgd.server.surviving.surviving_server import SurvivingServer
from psgd.server.wire import Header, MessageKind

_REPEAT, _BYE = int(MessageKind.REPEAT), int(MessageKind.BYE)


class ReplicatedServer(SurvivingServer):
    """One of several servers; its transport is a `ReplicatedServerTransport`, or a fake of the same kind."""

    def _initialize(self) -> None:
        self._over = False  # all have been sent the final parameters
        self._left: set[int] = set()  # workers that have them
        super()._initialize()

    @property
    def _replicated(self) -> ReplicatedServerTransport:
        return cast(ReplicatedServerTransport, self.transport)

    def _take(self, event: Header | Lost | LostServer) -> None:
        if isinstance(event, LostServer):
            self._withdraw()
            self.hand_over.lost_server(event.server)
        elif isinstance(event, Header) and event.kind == _REPEAT:
            self._log.append(LogEntry(release=(event.worker,), ends_log=self._over, stays_open=not self._over))
        elif isinstance(event, Header) and event.kind == _BYE:
            self._leave(event.worker)
        elif isinstance(event, Lost) and self._over:
            self._dead.add(event.worker)
            self._leave(event.worker)
        else:
            super()._take(event)

    def _withdraw(self) -> None:
        """Takes back what was pushed and not applied: new holders do not have it."""
        for worker, push in list(self._pending.items()):
            del self._pending[worker]
            cast(Deciding, self.strategy).on_lost(worker)
            self._clocks.take_back(push)
            self.metrics.dropped[worker] -= push.dropped
            self._replicated.bounce(worker)

    @property
    def holders(self) -> Holders:
        """Who holds what now."""
        return self._replicated.holders

    def state_of(self, shard: int) -> State:
        """What there is to save of a shard that this server holds; views."""
        return self._with_log(cast(HeldShards, self.shard).state(shard), shard)

    def _execute(self, entry: LogEntry) -> None:
        super()._execute(entry)
        if entry.ends_log:
            self._over, self._ended = True, False
            self._leave(*self._dead)

    def _leave(self, *workers: int) -> None:
        self._left.update(workers)
        self._ended = len(self._left) == self._options.workers
