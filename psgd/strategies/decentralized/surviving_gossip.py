"""Averaging in pairs among workers of which some die: the others finish their exchanges, and make their pairs anew.

What a dead worker has exchanged lives on in the others' parameters, and travels on with these; what it did after its
last exchange has not reached anybody, and goes to the others. How far it had come they know from the lines that come
with parameters. An exchange with it that was under way is dropped: the other one has moved, or has not.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives import Communicator
from psgd.collectives.mpi.request_cleanup import close, keep_for_ever
from psgd.collectives.mpi.tags import Tag
from psgd.kernels.errors import PeerLostError
from psgd.runtime.ulfm.deaths import MpiDeaths
from psgd.strategies.decentralized.gossip import GossipWorker
from psgd.strategies.decentralized.gossip_exchange import SAMPLES, STOP, Exchanges, Vector
from psgd.worker.context import RunContext
from psgd.worker.serverless.checkpoint_barrier import AbandonedError
from psgd.worker.serverless.reunion import Reunion

_NOTHING = np.empty(0, np.uint8)


class TolerantExchanges(Exchanges):
    """Exchanges that stand still once a call has failed, until it is known who lives.

    Args:
        comm: as of `Exchanges`.
        params: likewise.
        lines: likewise.
        failed: called with the error of such a call; raises it where no death explains it.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        params: Vector,
        lines: NDArray[np.float64] | None,
        failed: Callable[[MPI.Exception], None],
    ) -> None:
        super().__init__(comm, params, lines)
        self._deaths, self._failed = MpiDeaths(comm), failed
        self.broken = False  # a request that failed looks like one that is done

    def ask(self, partner: int) -> None:
        self._try(lambda: super(TolerantExchanges, self).ask(partner))

    def look(self) -> None:
        self._try(super().look)

    def _try(self, call: Callable[[], None]) -> None:
        if self.broken:
            return
        try:
            call()
        except MPI.Exception as error:
            self.broken = True
            self._failed(error)

    @property
    def idle(self) -> bool:
        return not self.broken and super().idle

    def go_on(self, living: Collection[int]) -> None:
        """Only these ranks live: drops an exchange with another, and goes on with the one that is under way."""
        self._deaths.ack()
        if self._partner not in living:
            close(self._receives, self._sends)
            self._receives.clear()
            self._sends.clear()
        self.broken = False


class SurvivingGossipWorker(GossipWorker):
    """A worker; implements `psgd.worker.serverless.reunion.Reunites`."""

    _reunion: Reunion

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.exchanges: TolerantExchanges = self._exchanges_of(self._private, None)
        self._coming: list[MPI.Request] | None = None  # once this worker is done: the others' word that they are

    def _exchanges_of(self, comm: MPI.Intracomm, lines: NDArray[np.float64] | None) -> TolerantExchanges:
        return TolerantExchanges(comm, self.params, lines, self._reunion.notice)

    def start(self) -> None:
        self._begun = self.exchanges.lines[:, SAMPLES].copy()
        super().start()

    def _take_step(self, samples: int, loss: float) -> None:
        self._reunion.drawn += samples
        super()._take_step(samples, loss)
        self._reunion.look()

    def _idle(self) -> bool:
        """At a checkpoint, which comes to nothing where a partner has died."""
        idle = super()._idle()
        if self.exchanges.broken:
            raise AbandonedError
        return idle

    def _end(self) -> None:
        while not self.ends():  # stopped early: what it was left is not to be done
            pass

    def _say_done(self) -> None:
        """Blocks while this worker's exchange is under way, as long as nobody dies."""
        exchanges, members = self.exchanges, self._members
        self._until_idle(members)
        for partner in exchanges.passive if exchanges.active and self._rank == self._leader and self.stop else []:
            if self._members is members:
                exchanges.ask(partner)
                self._until_idle(members)
        if self._members is members:
            with self._liveness.guard():
                others = [rank for rank in range(self._private.size) if rank != self._private.rank]
                self._coming = [self._private.Irecv([_NOTHING, MPI.BYTE], rank, Tag.DATA) for rank in others]
                for rank in others:
                    self._private.Isend([_NOTHING, MPI.BYTE], rank, Tag.DATA).Free()

    def _until_idle(self, members: list[int]) -> None:
        """Returns at once on a passive worker: it answers until all are here."""
        if self.exchanges.active:
            self._waiter.until(lambda: self._looked() or self._members is not members)

    def _looked(self) -> bool:
        """Looks for deaths and for messages; whether no exchange is under way."""
        self._meet_if_called()
        self._reunion.look()
        self.exchanges.look()
        return self.exchanges.idle

    def _all_done(self) -> bool:
        if not self._looked() or self._coming is None:
            return False
        try:
            return MPI.Request.Testall(self._coming)
        except MPI.Exception as error:
            self._coming = None  # a request that failed looks like one that is done
            self._reunion.notice(error)
            return False

    def facts(self) -> Sequence[int]:
        return ()

    def level(self, comm: MPI.Intracomm, members: list[int], facts: NDArray[np.int64]) -> list[int]:
        self._finish_exchanges(comm, members)
        mine = self.exchanges.lines
        everyone = np.empty((comm.size, *mine.shape))
        comm.Allgather(mine, everyone)
        known = mine.copy()
        for worker in range(len(mine)):
            others = [rank for rank, member in enumerate(members) if member != worker or comm.size == 1]
            rows = everyone[others, worker]
            if worker != self._rank:
                known[worker] = rows[rows[:, SAMPLES].argmax()]
        known[:, STOP] = everyone[:, :, STOP].max(0)
        self._known = known
        # Of those that live, what others have of it: no more is there if it dies next.
        reached = known[:, SAMPLES].copy()
        if comm.size > 1:
            for rank, worker in enumerate(members):
                reached[worker] = np.delete(everyone[:, worker, SAMPLES], rank).max()
        self._next, self._made = comm.Dup(), Communicator(comm)
        applied: list[int] = (reached - self._begun).astype(int).tolist()
        return applied

    def _finish_exchanges(self, comm: MPI.Intracomm, members: list[int]) -> None:
        """Brings the exchanges among those that live to their end. Collective over them, blocks."""
        exchanges, deaths = self.exchanges, MpiDeaths(comm)
        exchanges.go_on([rank for rank, worker in enumerate(self._members) if worker in members])

        def idle() -> bool:
            if comm.Is_revoked() or deaths.failed():
                raise PeerLostError("one more has died")
            exchanges.look()
            return exchanges.idle

        if exchanges.active:
            self._waiter.soon(idle)
        here = comm.Ibarrier()
        try:
            self._waiter.soon(lambda: idle() and here.Test())
        except BaseException:
            keep_for_ever(here)
            raise

    def settle(self, comm: MPI.Intracomm, members: list[int]) -> None:
        old = self.exchanges
        keep_for_ever(self._private)
        close(self._coming or (), ())
        self._rejoin(comm, self._made)
        self._private, self._coming = self._next, None
        self._members, self._leader = members, members[0]
        old.lines[:] = self._known
        self.exchanges = new = self._exchanges_of(self._private, old.lines)
        new.count, new.bytes_sent, new.bytes_received = old.count, old.bytes_sent, old.bytes_received
        old.close()
