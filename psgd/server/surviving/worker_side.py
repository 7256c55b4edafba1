"""A worker's side of the wire, which hears of other workers' deaths: an answer of a newer view has words before it."""

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.tags import Tag
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.surviving.hand_over import Words
from psgd.server.transports.gradient_memory import Gradients
from psgd.server.transports.worker_transport import MpiWorkerTransport
from psgd.server.wire import Header, MessageKind


class SurvivingWorkerTransport(MpiWorkerTransport):
    """Hands on to `mesh.survival` what a server has told.

    Attributes:
        over: the newest answer was the last of the run.
        checkpoints: that were made until the newest answer.
    """

    def __init__(self, context: PushPullContext, gradients: Gradients) -> None:
        assert gradients.own is not None
        super().__init__(context, gradients.own, gradients.reached)
        self._listen(context.mesh)

    def _listen(self, mesh: Mesh) -> None:
        """From now on."""
        self._mesh, self._view = mesh, 0
        self.over, self.checkpoints = False, 0

    def exchange(self, kind: int, with_grads: bool, with_params: bool = True) -> Header:
        answer = super().exchange(kind, with_grads, with_params)
        self._hear_of(answer)
        return answer

    def _hear_of(self, answer: Header) -> None:
        """Hands on all that was told before this answer."""
        while answer.view != self._view and answer.kind != MessageKind.END:
            words = self._hear()
            self._view = int(words[0])
            self._mesh.survival.receive(words[1:])
        self.over, self.checkpoints = answer.kind == MessageKind.END, answer.checkpoints

    def _hear(self) -> Words:
        return self._hear_from(lambda: 0)

    def _hear_from(self, server: Callable[[], int]) -> Words:
        """Receives what a server has told; asks again and again which one that is. Blocks."""
        comm, status = self._mesh.world, MPI.Status()
        message = self._waiter.until(lambda: comm.Improbe(self._mesh.server_rank(server()), Tag.VIEW, status))
        assert message is not None
        words = np.empty(status.Get_count(MPI.INT64_T), np.int64)
        message.Recv([words, MPI.INT64_T])
        return words
