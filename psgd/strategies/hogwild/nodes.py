"""hogwild on several nodes, seen from one worker: each node's first worker averages the node's copy with the others."""

from collections.abc import Callable, Mapping

from mpi4py import MPI

from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.memory import counters
from psgd.metrics.totals import Sums, add
from psgd.runtime.agreement import gather
from psgd.runtime.jsonable import JSON
from psgd.strategies.hogwild.node_averaging import NodeAveraging
from psgd.worker.serverless.shared_parameters import SharedParameters


class NodeCopies:
    """One worker's part; `period` is in steps of a node's first worker. Creating is collective, blocks.

    Attributes:
        leads: this worker is its node's first.
        leaders: for each worker the first one of its node.
        several: there are several nodes.
        request: for a checkpoint: the largest of all nodes in the last averaging.
        before: what other numbers of workers did, before this run resumed from there.
    """

    def __init__(
        self,
        workers: MPI.Intracomm,
        memory: SharedParameters,
        period: int,
    ) -> None:
        self._memory, self._lines, self._period = memory, memory.lines, period
        self.leads = memory.lines.place == 0
        self.leaders: list[int] = [each["leader"] for each in gather(workers, {"leader": memory.ranks[0]})]
        self.several = len(set(self.leaders)) > 1
        self.request = 0
        self.before = Sums(0, 0, 0.0)
        self._averaging: NodeAveraging | None = None
        first: MPI.Intracomm = workers.Split(0 if self.leads else MPI.UNDEFINED, workers.rank)  # type: ignore[assignment]
        if self.leads:
            try:
                from psgd.collectives import Communicator

                self._averaging = NodeAveraging(Communicator(first), memory.params) if self.several else None
            finally:
                first.Free()
        self._averaged_at = self._lines.steps()  # of each worker of the node, at the last averaging

    @property
    def averages(self) -> bool:
        """Whether this worker averages with other nodes."""
        return self._averaging is not None

    def begin(self) -> None:
        """Steps are counted from here."""
        self._averaged_at = self._lines.steps()

    def due(self, steps: int) -> bool:
        """Whether an averaging is due after so many steps of this worker."""
        return self._averaging is not None and steps % self._period == 0

    def average(self, done: bool, stop: bool) -> bool:
        """Averages, where `averages`. Collective over the first workers, blocks.

        Args:
            done: nobody on this node writes any more.
            stop: worker 0 asks to stop.

        Returns:
            Whether this was the last time.
        """
        averaging = self._averaging
        assert averaging is not None
        sums, steps = self._lines.sums(), self._lines.steps()
        last = averaging.round(sums, done, stop, self._lines.request())
        self._averaged_at = steps
        self.publish()
        self._lines.put(counters.STOP, int(averaging.stop))
        self.request = 0 if last else averaging.request
        return last

    def wait_until_due(self, waiter: Waiter, look: Callable[[], object]) -> None:
        """Waits, once this worker is done, until its node has taken steps enough for the next averaging.

        At once where nobody on the node takes steps any more, else as often as its workers would average.
        """

        def due() -> bool:
            look()
            active = self._lines.active()
            now, then = self._lines.steps(), self._averaged_at
            return not active or any(now[place] - then[place] >= self._period for place in active)

        waiter.until(due)

    def far(self) -> Sums:
        """What this node's workers have not done."""
        return self.before if self._averaging is None else add(self.before, self._averaging.far)

    def publish(self) -> None:
        """Writes that to where the node's other workers read it."""
        far = self.far()
        self._lines.put(counters.FAR_STEPS, far.steps)
        self._lines.put(counters.FAR_SAMPLES, far.samples)

    def known(self) -> list[list[float]] | None:
        """What the next averaging depends on; None where this worker does not average."""
        return None if self._averaging is None else self._averaging.known()

    def resume(self, facts: Mapping[str, JSON]) -> None:
        """Continues from that, a checkpoint's `nodes`."""
        if self._averaging is not None:
            self._averaging.resume(facts)

    def free(self) -> int:
        """Ends averaging; returns the bytes that it has sent, as many as it received."""
        if self._averaging is None:
            return 0
        self._averaging.free()
        return self._averaging.bytes_sent
