"""What a strategy without servers works with: every worker has all parameters."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psgd.compression.options import Compression
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim.rules import Rule
from psgd.optim.schedules import Schedule
from psgd.runtime.alarm import Alarm
from psgd.runtime.mesh import Mesh


@dataclass(frozen=True)
class RunContext:
    """What such a strategy works with.

    Attributes:
        mesh: all ranks; each is a worker, `mesh.worker` joins them.
        params: the caller's vector: where worker 0 starts, and where all are to end.
        rule: the update rule.
        schedule: the rate by samples applied, of all workers together.
        segment: elements of a segment.
        clip_norm: largest norm of a step's mean gradient; 0 is off.
        reduction_factor: what a mean gradient is multiplied by.
        metrics: counters; filled on worker 0.
        compression: how updates are made small, or None.
        alarm: to be looked at in every wait of its own: `alarm.check()` raises once another worker has failed. WaitLog
            of `psgd.collectives` do so by themselves.
    """

    mesh: Mesh
    params: NDArray[np.floating]
    rule: Rule
    schedule: Schedule
    segment: int
    clip_norm: float
    reduction_factor: float
    metrics: RunMetrics
    compression: Compression | None
    alarm: Alarm
