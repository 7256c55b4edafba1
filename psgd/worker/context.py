"""What the parts of a run work with, made once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.compression.options import Compression
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import Schedule
from psgd.runtime.alarm import Alarm
from psgd.runtime.mesh import Mesh
from psgd.worker.interface import Worker

if TYPE_CHECKING:
    from psgd.collectives import Communicator

Making = Callable[["RunContext"], Worker]


@dataclass(frozen=True)
class Alone:
    """Makes the workers of a strategy of which one alone does something else than a single rank by itself would.

    Others are replaced by `psgd.worker.local.LocalWorker` there.

    Attributes:
        make: the worker.
        check: refuses, with a UsageError, schedules of the learning rate with which the strategy is not stable.
    """

    make: Making
    check: Callable[[Schedule], None] | None = None

    def __call__(self, context: "RunContext") -> Worker:
        return self.make(context)


@dataclass(frozen=True)
class RunContext:
    """What a strategy without servers works with.

    Attributes:
        mesh: all ranks; each is a worker, `mesh.worker` joins them.
        params: the caller's vector: worker 0's values are where everyone starts; all end with the final ones.
        optimizer: rule, schedule, clipping.
        metrics: counters; filled on worker 0.
        compression: how updates are compressed, or None.
        alarm: `alarm.check()` raises once another worker has failed. Call it in every wait of your own; waits of
            `psgd.collectives` do so by themselves.
        accumulate: steps of a worker whose gradients make one update, for workers that add them by themselves.
    """

    mesh: Mesh
    params: NDArray[np.floating]
    optimizer: OptimizerOptions
    metrics: RunMetrics
    compression: Compression | None
    alarm: Alarm
    accumulate: int = 1

    @property
    def workers(self) -> MPI.Intracomm:
        """The workers' communicator."""
        return self.mesh.worker  # type: ignore[return-value]  # without servers every rank has it

    def communicator(self) -> "Communicator":
        """The collectives over all workers, which are loaded now. Collective, blocks; free it at the end."""
        from psgd.collectives import Communicator

        return Communicator(self.workers)
