"""A worker that is alone with a GPU: the step is taken on the host, by parts, while the GPU computes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import State
from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import clipped
from psgd.server.shard import Shard
from psgd.worker.local import LocalWorker

Vector = NDArray[np.floating]


class OffloadedLocal(LocalWorker):
    """A single rank whose step is `LocalWorker`'s, bit for bit.

    A part of the gradient is used as soon as `overlap`'s function is told of it. With clipping its squares are summed
    then, and updates start in `step`, once the norm of the whole gradient is known. Where somebody follows the updates,
    `step` returns while they are under way: then `params` are to be read by parts, each after `updates.wait`.

    Args:
        shard: the whole vector.
        grads: of its size, on the host.
        metrics: counters.
        updates: not opened.
    """

    def __init__(self, shard: Shard, grads: Vector, metrics: RunMetrics, updates: HostUpdates) -> None:
        super().__init__(shard, grads, metrics)
        self._updates = updates
        self._announced = 0  # samples of the gradient that is on its way through `overlap`
        self._final = grads.size  # its elements from here on have come
        self._scale = 1.0
        updates.open(shard.optimizer, grads)

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        if not samples or self._shard.open_samples:
            return None
        if self._announced:
            raise UsageError("overlap: a gradient is already being used: call step() before the next one")
        if not self._shard.optimizer.clips:
            self._begin(samples, self._shard.optimizer.options.reduction_factor)
        self._announced = samples
        return self._ready

    def _begin(self, samples: int, scale: float) -> None:
        """The optimizer's step begins: its learning rate and scale are known."""
        shard, self._scale = self._shard, scale
        shard.optimizer.begin(shard.samples)
        shard.samples += samples

    def _ready(self, part: range) -> None:
        if not part:
            return
        if part.stop != self._final:
            raise UsageError(
                f"overlap: expected a range that ends at {self._final} (ranges come from the vector's end to its "
                f"start), got {part}"
            )
        self._final = part.start
        self._use(part)

    def _use(self, part: range) -> None:
        """What can be done with a part before the whole gradient is there."""
        if self._shard.optimizer.clips:
            self._updates.add_squares(part)
        else:
            self._submit(part)

    def _submit(self, part: range) -> None:
        optimizer = self._shard.optimizer
        self._updates.submit(part, optimizer.lr, self._scale, optimizer.version)

    def step(self, samples: int, loss: float) -> None:
        if self._announced and self._announced != samples:
            raise UsageError(
                f"step: expected the {self._announced} samples that were passed to overlap(), got {samples}"
            )
        if not samples or self._shard.open_samples:
            self._updates.wait()
            super().step(samples, loss)
            return
        options, clips = self._shard.optimizer.options, self._shard.optimizer.clips
        if not clips and not self._announced:
            self._begin(samples, options.reduction_factor)
        for part in self._updates.parts(self._final):
            if part.stop <= self._final:
                self._use(part)
        if clips:
            total = options.total(self._updates.squares())
            self._begin(samples, clipped(options.reduction_factor, total, options.clip_norm))
            for part in self._updates.parts(self.grads.size):
                self._submit(part)
        self._announced, self._final = 0, self.grads.size
        self._pushes += 1
        self._metrics.applied(0, samples, loss, 0)
        if not self._updates.followed:
            self._updates.wait()
        self._stepped()
        if self.checkpoint.reached:
            self._updates.wait()
            self._updates.settled = True

    def state(self) -> State:
        self._updates.wait()
        return super().state()

    def finish(self) -> None:
        self._updates.wait()
        super().finish()
        self._updates.close()
