"""Flooding among workers of which some die: the others agree on which updates of the dead have been applied.

What a worker sends it keeps until all others are known to have applied it. When one dies, messages may be lost with it,
its own and those that it would have handed on. So those that live meet: the one that has applied most of the dead's
updates gets what it lacks of the others', and all take its parameters. Each update is then behind them once, and what
was under way is dropped. What the dead one's codec had left to send is lost.
"""

from collections import deque
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives import Communicator
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.tags import Tag
from psgd.strategies.decentralized.flood import KIND, ORIGIN, SAMPLES, VALUE, Flood, FloodKind, Message
from psgd.strategies.decentralized.flood_worker import FloodWorker
from psgd.worker.context import RunContext
from psgd.worker.serverless.reunion import Reunion

Bytes = NDArray[np.uint8]

_UPDATES = (int(FloodKind.UPDATE), int(FloodKind.WHOLE))
_NOBODY = 1 << 62  # no worker waits for one that is dead
_DRAWN = 3  # of the sums of a worker's updates: samples, those of updates that were left out too


class SurvivingFloodWorker(FloodWorker):
    """A worker; implements `psgd.worker.serverless.reunion.Reunites`.

    Args:
        context: of the run.
        links: each worker's neighbours, by how many workers there are.
        window: as for `FloodWorker`.
    """

    _reunion: Reunion

    def __init__(self, context: RunContext, links: Callable[[int], list[list[int]]], window: int) -> None:
        size = context.workers.size
        super().__init__(context, links(size), window)
        self._links = links
        if self.updates.codec is not None:
            self._reunion.hand_over.also_lost = "; what its codec had left to send is lost"
        self._flood.failed = self._reunion.notice
        self._unsure: deque[tuple[int, Bytes]] = deque()  # own updates that some may lack, with their numbers
        self._sums = np.zeros((size, 4))  # of each worker's updates: how many, samples, loss, samples drawn

    def _take_step(self, samples: int, loss: float) -> None:
        self._reunion.drawn += samples
        super()._take_step(samples, loss)

    def _tell(
        self, message: Message, kind: int, samples: int = 0, value: float = 0.0, value2: float = 0.0, length: int = 0
    ) -> None:
        super()._tell(message, kind, samples, value, value2, length)
        if kind in _UPDATES:
            self._unsure.append((self._mine, message.data[: message.data.size - message.payload.size + length].copy()))

    def _take(self) -> None:
        super()._take()
        known = min(self._theirs)
        while self._unsure and self._unsure[0][0] <= known:
            self._unsure.popleft()
        self._reunion.look()

    def _apply(self, message: Message) -> None:
        super()._apply(message)
        sums, samples = self._sums[int(message.words[ORIGIN])], int(message.words[SAMPLES])
        if message.length:
            sums[:_DRAWN] += 1, samples, samples * float(message.values[VALUE])
        sums[_DRAWN] += samples

    def _end(self) -> None:
        while not self.ends():  # stopped early: what it was left is not to be done
            pass

    def facts(self) -> list[int]:
        return [self._mine, *self.applied.tolist()]

    def level(self, comm: MPI.Intracomm, members: list[int], facts: NDArray[np.int64]) -> list[int]:
        made, applied = facts[:, 0], facts[:, 1:]
        root = int(np.delete(applied, members, 1).sum(1).argmax())
        for rank, origin in enumerate(members):
            behind = int(applied[root, origin])
            if rank == comm.rank:
                for number, data in self._unsure:
                    if number > behind:
                        comm.Send([data, MPI.BYTE], root, Tag.DATA)
            elif root == comm.rank:
                for _ in range(behind, int(made[rank])):
                    self._receive(comm, rank)
        self._root = root == comm.rank
        self._new = self.params if self._root else np.empty_like(self.params)
        self._facts = np.array([self.version, self.updates.samples, *self.applied], np.int64)
        self._theirs_sums = self._sums.copy()
        for array in (self._new, self._facts, self._theirs_sums):
            comm.Bcast(array, root)
        self._next, self._made = comm.Dup(), Communicator(comm)
        drawn: list[int] = self._theirs_sums[:, _DRAWN].astype(int).tolist()
        return drawn

    def _receive(self, comm: MPI.Intracomm, rank: int) -> None:
        """Gets another's update again, and applies it."""
        message, status = self._flood.compose(), MPI.Status()
        comm.Recv([message.data, MPI.BYTE], rank, Tag.DATA, status)
        message.length = status.Get_count(MPI.BYTE) - (message.data.size - message.payload.size)
        assert int(message.words[KIND]) in _UPDATES
        self._apply(message)

    def settle(self, comm: MPI.Intracomm, members: list[int]) -> None:
        self._rejoin(comm, self._made)
        self._members = members
        if not self._root:
            self.params[:] = self._new
        self.version, self.updates.samples, *applied = self._facts.tolist()
        self.applied[:] = self._published[:] = applied
        if self._rank == members[0]:  # who was not the first before has counted nothing yet
            self._count(self._theirs_sums - self._sums * (self._leader == members[0]))
        self._leader = members[0]
        self._sums[:] = self._theirs_sums
        self._theirs = [self._mine if w in members and w != self._rank else _NOBODY for w in range(len(applied))]
        self._unsure.clear()
        self._owes, self._done, self._living = False, 0, len(members)
        self._replace_flood()

    def _replace_flood(self) -> None:
        """Another graph, of those that live. What is under way in the old one is dropped."""
        old, members = self._flood, self._members
        links: list[list[int]] = [[] for _ in self._theirs]
        for worker, neighbours in zip(members, self._links(len(members)), strict=True):
            links[worker] = [members[rank] for rank in neighbours]
        keep_for_ever(self._private)
        self._private = self._next
        self._flood = Flood(self._private, links, self.updates.room, self._deliver, members, self._reunion.notice)
        self._flood.bytes_sent, self._flood.bytes_received = old.bytes_sent, old.bytes_received
        old.close()
        self._flood.open()

    def _count(self, more: NDArray[np.float64]) -> None:
        """The first worker counts what it has not counted as it applied it."""
        for worker, (pushes, samples, loss, _) in enumerate(more.tolist()):
            if pushes:
                self._metrics.count(worker, int(pushes), int(samples), loss)
        self._metrics.progress(self.updates.samples, self.version, self.updates.lr)
