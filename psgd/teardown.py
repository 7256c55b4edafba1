"""What a rank of a run has to give back at its end, and how it signals a failure to the others."""

from collections.abc import Callable

from mpi4py import MPI

from psgd.checkpoint.saver import Saver
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.wait import Waiter
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.runtime.alarm import Alarm
from psgd.runtime.mesh import Mesh
from psgd.server.transports.server_transport import MpiServerTransport
from psgd.server.transports.worker_transport import MpiWorkerTransport


class Teardown:
    """One rank's alarm, requests, checkpoints and communicators.

    Args:
        mesh: freed where the run ends well.
        saver: closed in any case.

    Attributes:
        alarm: towards the ranks that this one exchanges messages with; None before `listen` and after `end`.
        transport: this rank's side of the wire, with servers; closed in any case.
        before_end: called first where the run ends well, on all ranks; collective. None does nothing.
        bytes_sent, bytes_received: by the transport, once it has ended.
    """

    def __init__(self, mesh: Mesh, saver: Saver) -> None:
        self.alarm: Alarm | None = None
        self.transport: MpiWorkerTransport | MpiServerTransport | None = None
        self.before_end: Callable[[], None] | None = None
        self.bytes_sent = self.bytes_received = 0
        self._mesh, self._saver = mesh, saver

    def listen(self) -> Alarm:
        """From now on, this rank notices the others' failures, and `end` signals its own."""
        mesh = self._mesh
        cause = -1 - mesh.index if mesh.role == "server" else mesh.index
        if mesh.role == "server":
            others = [mesh.worker_rank(worker) for worker in range(mesh.workers)]
        elif mesh.servers:
            others = [mesh.server_rank(server) for server in range(mesh.servers)]
        else:
            others = [rank for rank in range(mesh.workers) if rank != mesh.index]
        self.alarm = alarm = Alarm(mesh.world, others, cause)
        if mesh.servers == 0:
            BACKGROUND.add(alarm)  # the waits of collectives look for it
        return alarm

    def waiter(self) -> Waiter:
        """Waits that look for the alarm. Collective over the mesh."""
        return Waiter.for_node(self._mesh.world, None if self.alarm is None else self.alarm.check)

    def wait(self, request: MPI.Request) -> None:
        """Waits for a collective's request, or until another rank has failed. Blocks."""
        try:
            Waiter(False, None if self.alarm is None else self.alarm.check, far=True).soon(request.Test)
        except BaseException:
            keep_for_ever(request)
            raise

    def end(self, error: BaseException | None) -> None:
        """Ends this rank's part: rings the alarm if it left with an error, and takes back every request.

        After a failure the communicators are not freed: a late message could reach the next one of that number.
        """
        before, self.before_end = self.before_end, None
        if before is not None and error is None:
            try:
                before()
            except BaseException as failure:
                self.end(failure)
                raise
        transport, self.transport = self.transport, None
        failed = error is not None
        try:
            if failed and self.alarm is not None:
                self.alarm.ring(error)
            self._saver.close(failed)
            if transport is not None:
                self.bytes_sent, self.bytes_received = transport.bytes_sent, transport.bytes_received
                transport.close()
            if self.alarm is not None:
                BACKGROUND.discard(self.alarm)
                self.alarm.close()
            if not failed:
                self._mesh.free()
        except MPI.Exception:
            if not failed:  # else the first error is the one to see
                raise
        finally:
            self.alarm = None
