"""A worker with a server, in a run that survives the death of other workers."""

from psgd.server.context import PushPullContext
from psgd.server.surviving.hand_over import HandOver
from psgd.server.surviving.worker_side import SurvivingWorkerTransport
from psgd.server.transports.gradient_memory import Gradients
from psgd.worker.push_pull import PushPullWorker


class GoesOn:
    """What such a worker is beside itself: it asks before it leaves whether another has died and left it something."""

    transport: SurvivingWorkerTransport
    _checkpoints: int

    def _survives(self, survival: HandOver) -> None:
        """From now on; on a worker that is made."""
        self._survival = survival
        survival.ends = self.ends  # type: ignore[method-assign]

    def start(self) -> None:
        super().start()  # type: ignore[misc]  # the worker's
        self._survival.started()

    def ends(self) -> bool:
        """Says that this worker's steps are over. Blocks.

        Returns:
            Whether the run is, for all; if not, there may be more to do now.
        """
        if not self.transport.over:
            super().finish()  # type: ignore[misc]
            self._checkpoints = self.transport.checkpoints  # those while it was done are not its own
        return self.transport.over

    def finish(self) -> None:
        while not self.ends():  # stopped early: what it was left is not to be done
            pass


class SurvivingPushPullWorker(GoesOn, PushPullWorker[SurvivingWorkerTransport]):
    """Sends its gradient as it is."""

    def __init__(self, context: PushPullContext, gradients: Gradients) -> None:
        assert gradients.own is not None
        kind = SurvivingWorkerTransport
        if context.mesh.replicas:
            from psgd.server.replicas.replicated_worker_side import ReplicatedWorkerTransport

            kind = ReplicatedWorkerTransport
        super().__init__(context, kind(context, gradients), gradients.own)
        self._survives(context.mesh.survival)
