"""What both ends of the wire work with, made once for a run with servers."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh


@dataclass(frozen=True)
class PushPullContext:
    """What a server and a worker of one run have alike.

    Attributes:
        mesh: all ranks.
        params: the whole vector of this rank.
        optimizer: as the user has asked for it.
        metrics: counters; filled on server 0.
        waiter: how to wait; it looks for the alarm.
        segment: elements in a segment.
        compression: how gradients are compressed, or None.
        shards: the servers' ranges.
    """

    mesh: Mesh
    params: NDArray[np.floating]
    optimizer: OptimizerOptions
    metrics: RunMetrics
    waiter: Waiter
    segment: int
    compression: Compression | None = None
    shards: list[range] = field(init=False)

    def __post_init__(self) -> None:
        shards = split(self.params.size, max(1, self.mesh.servers), max(1, ALIGN_BYTES // self.params.itemsize))
        object.__setattr__(self, "shards", shards)

    @property
    def server_optimizer(self) -> OptimizerOptions:
        """What is left for the servers to do: plain SGD where momentum and clipping come before encoding."""
        if self.compression is None:
            return self.optimizer
        rule = rules.sgd()._replace(settings=self.optimizer.rule.settings)
        return replace(self.optimizer, rule=rule, clip_norm=0.0)

    @property
    def settings(self) -> int:
        """How many numbers travel with a push for the servers' rule."""
        settings = self.optimizer.rule.settings
        return 0 if settings is None else settings.size
