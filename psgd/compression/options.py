"""Options of compressed updates, and what the optimizer does before they are encoded.

What a codec keeps for later is late, so an optimizer behind it would act on late gradients. It stands before the codec
instead, on each worker: weight decay, clipping and momentum on the worker's own gradient (the momentum correction of
Lin et al. 2018). Behind it there is plain SGD.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.mpi.env import switch
from psgd.compression import catalog
from psgd.kernels import accumulate, codecs, momentum_direction
from psgd.kernels.codecs import sparse
from psgd.kernels.codecs.catalog import CODECS
from psgd.kernels.codecs.codec import Codec
from psgd.kernels.errors import UsageError
from psgd.optim.optimizer import OptimizerOptions, clipped
from psgd.optim.rules import Rule

Vector = NDArray[np.floating]


class Compression(NamedTuple):
    """How updates are compressed.

    Attributes:
        name: of the codec.
        density: the share of elements that are sent at a step.
        warmup: samples of all workers before which updates are sent whole.
        sync_every: steps from one to the next at which the whole residual is sent; 0 is never.
        factor, weight_decay: of the rule that stands before the codec.
    """

    name: str
    density: float
    warmup: float
    sync_every: int
    factor: float
    weight_decay: float

    @property
    def codec_has_momentum(self) -> bool:
        """Whether the codec applies momentum itself."""
        return self.name in CODECS and CODECS[self.name].has_momentum

    def sends_whole(self, samples: float, step: int) -> bool:
        """Whether a step is sent whole, after so many samples; `step` counts from 1."""
        return samples < self.warmup or (self.sync_every > 0 and step % self.sync_every == 0)

    def codec(self, n: int, dtype: Any, workers: int | None = None) -> Codec:
        """A codec for n elements, its invariant checked at each call with PSGD_CHECK=1.

        Args:
            n: elements.
            dtype: float32 or float64.
            workers: how many workers' updates it is to carry, where it is for a server's answers; None for a worker's.
        """
        density = min(1.0, (workers or 1) * self.density)
        options = {"momentum": self.factor if workers is None else 0.0} if self.codec_has_momentum else {}
        return codecs.create(self.name, n, dtype, density=density, check=bool(switch("PSGD_CHECK")), **options)


def create(compress: str | None, density: float, warmup: float, sync_every: int, rule: Rule) -> Compression | None:
    """Checks the options.

    Returns:
        None where nothing is to be compressed.

    Raises:
        UsageError: an option that cannot be, or a rule that cannot stand before a codec.
    """
    if compress is not None:
        catalog.compress("").check("compress", compress)
    share = catalog.DENSITY.check("density", density)
    first, every = catalog.WARMUP.check("compress_warmup", warmup), catalog.SYNC.check("compress_sync", sync_every)
    if compress in (None, "none"):
        return None
    if rule.factor is None:
        raise UsageError(
            f"rule: with compress={compress} expected sgd or momentum, which can come before encoding, got {rule.name}"
        )
    return Compression(str(compress), share, first, every, rule.factor, rule.weight_decay)


class BeforeEncoding:
    """A worker's part of the optimizer: rate, clipping, weight decay and momentum.

    Args:
        compression: says how much; a codec that has momentum itself is given it, not this.
        params: whose size and dtype the vectors have.
        optimizer: the run's. A worker clips its own gradient to `clip_norm` over the square root of `workers` (Lin et
            al. 2018, section 3.3).
        workers: how many there are.

    Attributes:
        velocity: kept from step to step; empty without momentum.
        lr: rate of the newest step.
    """

    def __init__(self, compression: Compression, params: Vector, optimizer: OptimizerOptions, workers: int) -> None:
        self.lr = optimizer.schedule(0)
        self._optimizer = optimizer
        self._factor = 0.0 if compression.codec_has_momentum else compression.factor
        self._decay = compression.weight_decay
        self._clip = optimizer.clip_norm / math.sqrt(workers)
        self.velocity: Vector = np.zeros(params.size if self._factor else 0, params.dtype)
        none = np.zeros(0, params.dtype)
        momentum_direction.direction(none, none, none, none, 1.0, 0.0, 0.0, 1.0)
        accumulate.sum_of_squares(none)
        sparse.look(none)

    def begin(self, position: float) -> float:
        """A step begins.

        Args:
            position: samples applied before, for the rate.

        Returns:
            What the direction is multiplied by to be a change of the parameters.
        """
        self.lr = self._optimizer.schedule(position)
        return -self.lr * self._optimizer.reduction_factor

    def __call__(self, out: Vector, grads: Vector, params: Vector, rate: float) -> bool:
        """`out = rate * (momentum of the clipped gradient with weight decay)`.

        Where that is not finite, or 2^100 and more, though the gradient was, training has diverged: momentum starts
        again at 0, and `out` is not to be used.

        Args:
            out: written; not `grads`.
            grads: finite; not changed.
            params: what they were computed on.
            rate: that of `begin` or a part of it for a change of the parameters, 1 for a gradient.

        Returns:
            Whether `out` can be encoded.
        """
        scale = clipped(1.0, accumulate.sum_of_squares(grads), self._clip) if self._clip else 1.0
        momentum_direction.direction(out, grads, params, self.velocity, scale, self._decay, self._factor, rate)
        if sparse.look(out) >= 0:
            return True
        self.velocity.fill(0)
        return False
