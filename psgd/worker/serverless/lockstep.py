"""Workers without servers that keep pace: all meet in rounds (`psgd.worker.serverless.status_rounds`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from psgd.checkpoint.declared import Arrays, Combine
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.worker.base import WorkerBase
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.status_rounds import StatusRounds

if TYPE_CHECKING:
    from mpi4py import MPI

    from psgd.collectives import Communicator
    from psgd.metrics.trace.span import Traceable
    from psgd.worker.serverless.regroup import Regroup


class LockstepWorker(WorkerBase):
    """The common part of such a worker. Creating is collective, blocks.

    A strategy writes `_take_step` and `_round`, and sets `_votes.algorithms`. `finish` frees `comm`. `together` says
    that all take the same steps, so that the rule must go by the same settings.
    """

    def __init__(self, context: RunContext, comm: "Communicator", grads: Vector, together: bool = False) -> None:
        self._votes = CheckpointVotes()
        super().__init__(context.params, grads, comm.rank, self._votes)
        self._comm = comm
        self._metrics = context.metrics
        settings = context.optimizer.rule.settings if together else None
        everyone = context.mesh.survival is not None
        self._rounds = StatusRounds(comm, context.metrics, self._votes, settings, everyone=everyone)
        self._regroup: Regroup | None = None  # set by a strategy that goes on without workers that die

    def start(self) -> None:
        if self._regroup is not None:
            self._regroup.hand_over.ends = self.ends
        self._rounds.begin(self.params)
        if self._resumed:
            for item in self._kept():
                if isinstance(item, Arrays) and item.combine is Combine.ALIKE:
                    for name, array in item.arrays.items():
                        if name != "params":  # all have them already
                            self._comm.Bcast(array, item.owner or 0)

    def step(self, samples: int, loss: float) -> None:
        if self._regroup is not None:
            self._regroup.drawn += samples
        super().step(samples, loss)
        self._rounds.waited_s = self.waited_s

    def spans(self) -> "list[Traceable]":
        from psgd.metrics.trace.span import Span

        return [Span(self._rounds, "exchange", "wait")]

    def _round(self, done: bool) -> None:
        """A round, with what follows from it; `done` says that this worker has no more steps. Collective, blocks."""
        raise NotImplementedError

    def _together(self, act: Callable[[], None]) -> None:
        """Makes a round, again where a worker has died in it. Collective, blocks."""
        if self._regroup is None:
            act()
        else:
            self._regroup.run(act, lambda: self._rounds.samples, lambda: self._rounds.all_done)

    def ends(self) -> bool:
        """Says in rounds that this worker's steps are over. Collective, blocks.

        Returns:
            Whether the run is, for all; if not, one has died in such a round, and there may be more to do.
        """
        assert self._regroup is not None
        return self._regroup.ends(self._end, lambda: self._rounds)

    def keep(self) -> None:
        """The next five are `psgd.worker.serverless.regroup.Regroups`; a strategy adds what it has itself."""
        self._rounds.keep()

    def put_back(self) -> None:
        self._rounds.put_back()

    def revoke(self) -> None:
        self._comm.revoke()

    def rebuild(self, comm: "Communicator", members: list[int]) -> None:
        comm.adopt(self._comm)
        keep_for_ever(self._comm)
        self._saves_as = 0 if members[0] == self._index else self._index
        self._comm, self._rounds = comm, self._rounds.regrouped(comm, members)

    def share(self, comm: "MPI.Intracomm", root: int, takes: bool) -> None:
        rounds = self._rounds
        words = np.array([rounds.version, rounds.active, rounds.stop, rounds.all_done, *self._votes.newest])
        comm.Bcast(words, root)
        if takes:
            rounds.take(*words[:4].tolist())
            self._votes.catch_up(words[4:].tolist())
            self.stop = self._rounds.stop

    def report(self, accuracy: float, loss: float) -> None:
        self._rounds.report(accuracy, loss)

    def finish(self) -> None:
        while not self._rounds.all_done:
            self._end()
        self._count_bytes()
        if self._regroup is not None:  # what has lost ranks is not freed
            return
        self._free()
        self._rounds.free()
        self._comm.free()

    def _end(self) -> None:
        """A round of a worker that has no more steps. Collective, blocks."""
        self._round(done=True)
        if self.checkpoint.reached:
            self.checkpoint.on_reached()

    def _free(self) -> None:
        """Frees what the strategy has made of the communicator."""

    def _count_bytes(self) -> None:
        self.bytes_sent = self.bytes_received = self._rounds.bytes_sent
